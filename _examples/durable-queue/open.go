package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	amqp091 "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/pubsub/rabbitmq"
)

// broker is both ends of a message broker.
type broker interface {
	message.Publisher
	message.Subscriber
}

// unique begins the names of what is made for this run.
var unique = "durable_queue_" + strings.ToLower(watermill.NewShortUUID()) + "_"

// openDatabase opens a new SQLite file, or a new database on a PostgreSQL server, with the
// settings that the inbox needs: see docs/databases.md.
func openDatabase(server string) (db *sqlx.DB, drop func() error, err error) {
	if server != "" {
		return openPostgres(server)
	}
	dir, err := os.MkdirTemp("", "millrace-durable-queue-")
	if err != nil {
		return nil, nil, err
	}
	db, err = sqlx.Open("sqlite", "file:"+filepath.Join(dir, "orders.db")+"?_txlock=immediate"+
		"&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, nil, err
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	return db, func() error { return errors.Join(db.Close(), os.RemoveAll(dir)) }, nil
}

func openPostgres(dsn string) (db *sqlx.DB, drop func() error, err error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, nil, err
	}
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "30000"
	config.RuntimeParams["lock_timeout"] = "10000"
	server := sqlx.NewDb(stdlib.OpenDB(*config), "pgx")
	name := unique + "db"
	if _, err := server.Exec(`CREATE DATABASE ` + name); err != nil {
		return nil, nil, errors.Join(err, server.Close())
	}
	config.Database = name
	db = sqlx.NewDb(stdlib.OpenDB(*config), "pgx")
	db.SetMaxOpenConns(20)
	return db, func() error {
		closed := db.Close()
		_, dropped := server.Exec(`DROP DATABASE ` + name + ` WITH (FORCE)`)
		return errors.Join(closed, dropped, server.Close())
	}, nil
}

// openBroker opens a gochannel, or new queues on a RabbitMQ.
func openBroker(url string) (b broker, remove func() error, err error) {
	if url == "" {
		channel := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
		return channel, channel.Close, nil
	}
	config := rabbitmq.NewQueueConfig(url, rabbitmq.Queues{})
	config.Queue.GenerateName = func(topic string) string { return unique + topic }
	config.Publish.GenerateRoutingKey = config.Queue.GenerateName
	if err := rabbitmq.Declare(config, orders, dead); err != nil { // it keeps nothing for a queue that is not there
		return nil, nil, err
	}
	publisher, err := rabbitmq.NewPublisher(config, rabbitmq.PublisherConfig{})
	if err != nil {
		return nil, nil, err
	}
	subscriber, err := rabbitmq.NewSubscriber(config, rabbitmq.SubscriberConfig{InFlight: 8})
	r := rabbit{publisher, subscriber}
	return r, func() error { return errors.Join(r.Close(), deleteQueues(url)) }, err
}

// rabbit is both ends of a RabbitMQ.
type rabbit struct {
	*rabbitmq.Publisher
	subscriber *rabbitmq.Subscriber
}

func (r rabbit) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return r.subscriber.Subscribe(ctx, topic)
}

// Close closes both ends.
func (r rabbit) Close() error { return errors.Join(r.subscriber.Close(), r.Publisher.Close()) }

func deleteQueues(url string) error {
	conn, err := amqp091.Dial(url)
	if err != nil {
		return err
	}
	channel, err := conn.Channel()
	for _, topic := range []string{orders, dead} {
		if err == nil {
			_, err = channel.QueueDelete(unique+topic, false, false, false)
		}
	}
	return errors.Join(err, conn.Close())
}
