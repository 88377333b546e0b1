// Command consumer handles a message that comes twice, with a part of each module.
package main

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	"github.com/millrace-go/millrace/metrics"
	"github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/middleware/redisleases"
	"github.com/millrace-go/millrace/mysqldb"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/pgxdb"
	"github.com/millrace-go/millrace/tracing"
)

func main() {
	counts, err := metrics.NewBuilder(prometheus.NewRegistry(), metrics.Config{})
	must(err)
	_, err = redisleases.New(redis.NewClient(&redis.Options{}), redisleases.Config{}) // no server is asked
	must(err)
	_, err = mysqldb.Open(&mysql.Config{MultiStatements: true, InterpolateParams: true})
	must(err)
	must(pgxdb.Open(&pgx.ConnConfig{}).Close()) // opens no connection
	leases := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{Observers: []inbox.Observer{counts.Inbox()}})
	handled := 0
	handle := tracing.New(tracing.Config{}).Middleware(middleware.Deduplicate{Claims: leases, Consumer: "billing"}.Middleware(
		func(*message.Message) ([]*message.Message, error) {
			handled++
			return nil, nil
		}))
	for range 2 {
		msg := message.NewMessage("order-1", nil)
		outbox.Stamp(msg, "order", 1)
		_, err := handle(msg)
		must(err)
		msg.Ack()
	}
	fmt.Printf("handled %d of 2\n", handled)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
