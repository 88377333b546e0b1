package health_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/jmoiron/sqlx"
	_ "modernc.org/sqlite"

	"github.com/millrace-go/millrace/health"
	"github.com/millrace-go/millrace/inbox"
)

func ExampleNewHandler() {
	db, err := sqlx.Open("sqlite", "file:health?mode=memory&_txlock=immediate")
	if err != nil {
		panic(err)
	}
	defer db.Close() //nolint:errcheck // it is in memory
	db.SetMaxOpenConns(1)
	store, err := inbox.NewStore(db, inbox.Config{})
	if err != nil {
		panic(err)
	}
	checks, err := health.NewHandler(health.Config{Store: store})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/healthz", checks)

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	fmt.Print(answer.Code, " ", answer.Body) // nobody has called store.Migrate
	// Output: 503 {"status":"down","problems":[{"kind":"unreadable","severity":"error"}]}
}
