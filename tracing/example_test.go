package tracing_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/jmoiron/sqlx"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tracing"
)

// Everything that happens to an order is in one trace. A service has one Tracer, and gives it to
// the inbox, the outbox, the relay and the router.
func Example() {
	spans := tracetest.NewSpanRecorder() // instead of an exporter
	tracer := tracing.New(tracing.Config{
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)), // by default otel's global one
		System:         "gochannel",
	})
	db, remove := openDatabase()
	defer remove()
	broker := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})

	store, err := inbox.NewStore(db, inbox.Config{Observers: []inbox.Observer{tracer.InboxObserver()}})
	check(err)
	check(store.Migrate(context.Background()))
	out, err := outbox.NewPublisher(db, outbox.Config{})
	check(err)
	relay, err := outbox.NewRelay(db, tracer.Sender(broker), outbox.RelayConfig{
		Observers: []outbox.Observer{tracer.RelayObserver()},
	})
	check(err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	check(err)
	router.AddMiddleware(tracer.Middleware) // first
	millrace.Inbox{Store: store, Outbox: tracer.Publisher(out)}.AddTo(router)
	handled := make(chan struct{})
	router.AddConsumerHandler("billing", "orders", broker, func(msg *message.Message) error {
		_, err := inbox.Tx(msg.Context())
		close(handled)
		return err
	})

	check(outbox.InTx(context.Background(), db, func(ctx context.Context, _ *sqlx.Tx) error {
		return tracer.Publisher(out).Publish("orders", message.NewMessageWithContext(ctx, "7", nil))
	}))
	_, err = relay.RelayBatch(context.Background())
	check(err)
	go func() { <-handled; check(router.Close()) }()
	check(router.Run(context.Background()))
	check(store.Close(context.Background()))

	for _, span := range spans.Ended() {
		fmt.Println(strings.Join(append([]string{span.Name()}, decisions(span)...), ": "))
	}
	// Output:
	// create orders
	// send orders
	// process orders: completed
}

func decisions(span sdktrace.ReadOnlySpan) (names []string) {
	for _, event := range span.Events() {
		names = append(names, event.Name)
	}
	return names
}

func openDatabase() (db *sqlx.DB, remove func()) {
	dir, err := os.MkdirTemp("", "millrace")
	check(err)
	db, err = sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	check(err)
	return db, func() {
		check(db.Close())
		check(os.RemoveAll(dir))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
