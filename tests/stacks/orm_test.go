package stacks_test

import (
	"context"
	"database/sql"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/millrace-go/millrace/inbox"
)

type account struct {
	ID      string `bun:",pk"`
	Balance int64
}

func withBun(pool *sqlx.DB) message.NoPublishHandlerFunc {
	db := bun.NewDB(pool.DB, pgdialect.New())
	return func(msg *message.Message) error {
		o, err := read(msg)
		if err != nil {
			return err
		}
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		if _, err := db.NewInsert().Model(&o).Conn(tx.Tx).Exec(msg.Context()); err != nil { // Conn: else it uses the pool
			return err
		}
		_, err = db.NewUpdate().Model(&account{ID: "shop"}).Set("balance = balance + ?", o.Amount).WherePK().Conn(tx.Tx).Exec(msg.Context())
		return err
	}
}

func withGORM(pool *sqlx.DB) (message.NoPublishHandlerFunc, error) {
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: pool.DB}), &gorm.Config{Logger: logger.Discard})
	if err != nil {
		return nil, err
	}
	return func(msg *message.Message) error {
		o, err := read(msg)
		if err != nil {
			return err
		}
		tx, err := inbox.Tx(msg.Context())
		if err != nil {
			return err
		}
		session := inTx(msg.Context(), db, tx.Tx)
		if err := session.Create(&o).Error; err != nil {
			return err
		}
		return session.Transaction(func(nested *gorm.DB) error { // a savepoint
			return nested.Model(&account{ID: "shop"}).Update("balance", gorm.Expr("balance + ?", o.Amount)).Error
		})
	}, nil
}

// inTx returns a session of db that writes in tx. Without it, db begins a transaction of its own.
func inTx(ctx context.Context, db *gorm.DB, tx *sql.Tx) *gorm.DB {
	session := db.Session(&gorm.Session{Context: ctx, NewDB: true, SkipDefaultTransaction: true})
	session.Statement.ConnPool = tx
	return session
}

// withEnt takes the transaction for the driver of a client: ent.NewClient(ent.Driver(driver)) of the code that ent has generated.
func withEnt(msg *message.Message) error {
	o, err := read(msg)
	if err != nil {
		return err
	}
	tx, err := inbox.Tx(msg.Context())
	if err != nil {
		return err
	}
	driver := entsql.NewDriver(dialect.Postgres, entsql.Conn{ExecQuerier: tx.Tx})
	build := entsql.Dialect(dialect.Postgres)
	query, args := build.Insert("orders").Columns("id", "amount").Values(o.ID, o.Amount).Query()
	if err := driver.Exec(msg.Context(), query, args, nil); err != nil {
		return err
	}
	query, args = build.Update("accounts").Add("balance", o.Amount).Where(entsql.EQ("id", "shop")).Query()
	return driver.Exec(msg.Context(), query, args, nil)
}
