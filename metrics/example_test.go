package metrics_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/metrics"
	millrace "github.com/millrace-go/millrace/middleware"
)

// A service gives its own registry, and serves it as it serves its other metrics.
func ExampleBuilder() {
	dir, err := os.MkdirTemp("", "millrace-example-")
	must(err)
	defer os.RemoveAll(dir) //nolint:errcheck // it is temporary
	db, err := sqlx.Open("sqlite", "file:"+filepath.Join(dir, "example.db")+
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	must(err)
	defer db.Close() //nolint:errcheck // nothing is left to be written

	registry := prometheus.NewRegistry()
	m, err := metrics.NewBuilder(registry, metrics.Config{})
	must(err)
	store, err := inbox.NewStore(db, inbox.Config{Observers: []inbox.Observer{m.Inbox()}})
	must(err)
	must(store.Migrate(context.Background()))
	must(m.WatchStore(store))

	handler := millrace.Inbox{Store: store, Consumer: "accounts"}.Middleware(
		func(msg *message.Message) ([]*message.Message, error) {
			_, err := inbox.Tx(msg.Context())
			return nil, err
		})
	for range 3 {
		payment := message.NewMessage("payment-1", nil)
		payment.Metadata.Set("name", "paid")
		_, err := handler(payment) // as a router does
		must(err)
	}

	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if slices.ContainsFunc([]string{"received", "completed", "duplicates", "table_rows{table=\"millrace_claims"}, func(name string) bool {
			return strings.HasPrefix(line, "millrace_inbox_"+name)
		}) {
			fmt.Print(line)
		}
	}
	// Output:
	// millrace_inbox_completed_total{consumer="accounts"} 1
	// millrace_inbox_duplicates_total{consumer="accounts",event_type="paid"} 2
	// millrace_inbox_received_total{consumer="accounts"} 3
	// millrace_inbox_table_rows{table="millrace_claims"} 1
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
