package bench_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkDashboard is how long the pages of the dashboard take on PostgreSQL with a million
// claims and a million open messages, half of them stuck: 50 ms for the overview and 150 for the others in
// 95 of 100. Each page is asked for by a dashboard whose Run samples the backlog, by one that
// remembers nothing, as the first page after a start is, and while all parked messages are retried.
func BenchmarkDashboard(b *testing.B) {
	claims, messages := pick(1_000_000, 10_000), pick(1_000_000, 2_000)
	db := testdb.On(b, dialect.PostgresName, testdb.Pool(pool))
	store := newStore(b, db)
	require.NoError(b, store.Migrate(b.Context()))
	crowd(b, db, store, claims, messages)
	out := rig.NewOutbox(b, db.DB, outbox.Config{})
	pages := func() http.Handler {
		h, err := dashboard.New(store, dashboard.Config{Outbox: out})
		require.NoError(b, err)
		return h
	}
	groups, err := admin.New(store).FailureGroups(b.Context(), admin.Filter{})
	require.NoError(b, err)
	last, err := admin.New(store).Search(b.Context(), admin.Filter{}, int64(messages/2), 1, 0)
	require.NoError(b, err)
	known := pages().(*dashboard.Handler)
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	go func() { _ = known.Run(ctx) }() // it ends with ctx, and returns no error
	pageList := []string{
		"", "inbox", "inbox?status=parked", "inbox?status=received&consumer=c3&after=" + strconv.Itoa(messages/2),
		"inbox?topic=nowhere", "inbox?sort=-stored", "inbox?topic=nowhere&sort=-stored", "message?key=" + last.Messages[0].MessageID, "failures",
		"failure?group=" + strconv.FormatInt(groups[0].ErrorGroup, 10), "waiting", "outbox", "consumers", "audit", "check",
	}
	for _, page := range pageList {
		var first, again []time.Duration
		for range pick(20, 1) {
			first = append(first, ask(b, pages(), page))
			again = append(again, ask(b, known, page))
		}
		tellPage("dashboard/"+page, page, again, fmt.Sprintf(", without Run after a start: %v (%d claims, %d open messages, %d times)",
			slowest(first), claims, messages, len(first)))
	}
	whileRetried(b, admin.New(store), known, pageList)
	b.ReportMetric(0, "ns/op")
}

// whileRetried asks for the pages while all parked messages are retried.
func whileRetried(b *testing.B, a *admin.Admin, h http.Handler, pages []string) {
	b.Helper()
	var retried atomic.Int64
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pace := admin.Pace{Progress: func(done int) { retried.Store(int64(done)) }}
		_, err := a.RetryAll(ctx, admin.Filter{}, admin.Operator{Name: "ada", Reason: "the bank is back"}, nil, pace)
		if ctx.Err() == nil {
			assert.NoError(b, err)
		}
	}()
	took, began := map[string][]time.Duration{}, time.Now()
	for range pick(40, 1) {
		for _, page := range pages {
			took[page] = append(took[page], ask(b, h, page))
		}
	}
	during := time.Since(began).Round(time.Second)
	stop()
	<-ended
	for _, page := range pages {
		tellPage("dashboard/retry/"+page, page, took[page], fmt.Sprintf(" (%d times in %v, in which %d messages were retried)",
			len(took[page]), during, retried.Load()))
	}
}

func tellPage(name, page string, took []time.Duration, more string) {
	goal, verdict := 150*time.Millisecond, "PASS"
	if page == "" {
		goal = 50 * time.Millisecond
	}
	if slowest(took) > goal {
		verdict = "MISSED"
	}
	tell(fmt.Sprintf("%s p95=%v goal≤%v %s%s", name, slowest(took), goal, verdict, more))
}

func ask(b *testing.B, h http.Handler, page string) time.Duration {
	b.Helper()
	w := httptest.NewRecorder()
	began := time.Now()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+page, nil))
	took := time.Since(began)
	require.Equal(b, http.StatusOK, w.Code, page)
	return took
}

func slowest(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[(len(d)*95+99)/100-1].Round(100 * time.Microsecond)
}

// crowd fills the tables of ten consumers: claims, open messages of all states in hundreds
// of groups of failures and aggregates, a day of activity and an audit log.
func crowd(b *testing.B, db *testdb.DB, store *inbox.Store, claims, messages int) {
	b.Helper()
	const consumers = 10
	for i := range consumers {
		queue, err := store.Queue(inbox.QueueConfig{Consumer: "c" + strconv.Itoa(i)})
		require.NoError(b, err)
		require.NoError(b, queue.Put(b.Context(), topic, message.NewMessage("first", payload)))
	}
	run(b, db, fmt.Sprintf(`
		INSERT INTO millrace_claims (consumer, message_id, result, processed_at, payload_hash, token)
		SELECT c.id, '\x01'::BYTEA || uuid_send(gen_random_uuid()), 1, c.created_at, 1, 1
		FROM generate_series(1, %d) i JOIN millrace_consumers c ON c.name = convert_to('c' || i %% %d, 'UTF8')`, claims, consumers),
		fmt.Sprintf(`
		INSERT INTO millrace_messages (consumer, message_id, status, attempts, topic, uuid, metadata, payload, payload_hash,
			received_at, due_at, last_error, error_group, aggregate, version)
		SELECT m.consumer, '\x01'::BYTEA || uuid_send(gen_random_uuid()), s.status, 1, m.topic, convert_to(i::TEXT, 'UTF8'), m.metadata,
			convert_to(repeat('payload ', 60), 'UTF8'), 1, m.received_at + i, m.due_at + 60000000,
			CASE WHEN s.status IN (4, 5, 6) THEN convert_to('an error of kind ' || chr(97 + i %% 26) || chr(97 + i %% 17), 'UTF8') END,
			CASE WHEN s.status IN (4, 5, 6) THEN 1 + i %% 442 END,
			CASE WHEN s.status = 7 THEN convert_to('order-' || i %% 3000, 'UTF8') END, CASE WHEN s.status = 7 THEN i END
		FROM generate_series(1, %d) i
		CROSS JOIN LATERAL (SELECT (ARRAY[1, 4, 1, 7, 1, 4, 1, 4, 6, 5])[1 + (i / %d) %% 10] AS status) s
		JOIN millrace_consumers c ON c.name = convert_to('c' || i %% %d, 'UTF8')
		JOIN millrace_messages m ON m.uuid = 'first' AND m.consumer = c.id`, messages, consumers, consumers),
		`INSERT INTO millrace_activity (minute, consumer, completed, failed, duplicates, stale, held, parked, handling_us)
		SELECT (EXTRACT(EPOCH FROM clock_timestamp())::BIGINT / 60 - i) * 60000000, c.id, 600, i % 7, 3, 0, 0, 0, 1000000
		FROM generate_series(1, 1439) i CROSS JOIN millrace_consumers c`,
		`INSERT INTO millrace_audit (at, actor, action, reason, consumer, message_id, detail)
		SELECT i, 'ada', 'retry', 'because', c.id, convert_to(i::TEXT, 'UTF8'), 'row' FROM generate_series(1, 2000) i CROSS JOIN millrace_consumers c`,
		`UPDATE millrace_consumers SET served_until = created_at + 3600000000`,
		`ANALYZE millrace_claims`, `ANALYZE millrace_messages`, `ANALYZE millrace_activity`, `ANALYZE millrace_audit`)
}
