package tests_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/internal/msgcode"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// shop is a database in which much has happened: billing has a backlog of all kinds, mail
// has handled messages, and the outbox has something that nobody could send.
type shop struct {
	*testing.T
	db    *testdb.DB
	store *inbox.Store
	out   *outbox.Publisher
}

// id is a UUID that a reader recognises.
func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func newShop(t *testing.T, db *testdb.DB) *shop {
	t.Helper()
	s := &shop{T: t, db: db}
	s.store = rig.NewStore(t, db.DB, inbox.Config{LogDropped: true})
	require.NoError(t, s.store.Migrate(t.Context()))
	s.out = rig.NewOutbox(t, db.DB, outbox.Config{Standalone: true, OrderKey: outbox.ByMetadata("account")})
	s.stock()
	s.produce()
	s.work()
	s.deploy()
	s.exec(`UPDATE millrace_claims SET processed_at = ? WHERE result = 1`, ago(3*day))
	s.exec(`UPDATE millrace_outbox SET created_at = ? WHERE topic = ?`, ago(3*day), "invoices")
	s.exec(`UPDATE millrace_dropped SET at = ?`, ago(5*day/2))
	s.exec(`UPDATE millrace_messages SET received_at = ?`, ago(2*day))
	for attempt := 1; attempt < 10; attempt++ {
		s.went(4, attempt, admin.FailedRetryable, "to be tried again")
	}
	s.went(4, 10, admin.Parked, "failed 10 times")
	s.exec(`UPDATE millrace_history SET run_of = number, process = ?, took_us = 1250300, trace = ? WHERE attempts > 8`,
		[]byte("web-1/4711"), []byte("4bf92f3577b34da6a3ce929d0e0e4736"))
	s.went(7, 1, admin.FailedTerminal, "no other attempt would end differently")
	s.exec(`UPDATE millrace_history SET number = number + 8 WHERE status = ?`, admin.FailedTerminal) // it failed before
	return s
}

// went adds an attempt to the history of a row, so many minutes after it was stored.
func (s *shop) went(row, attempt int, status admin.Status, reason string) {
	s.Helper()
	s.exec(`INSERT INTO millrace_history (consumer, message_id, slot, number, at, received_at, attempts, status, failed, reason, error)
		SELECT consumer, message_id, ?, ?, received_at + ?, received_at, ?, ?, 1, ?, last_error FROM millrace_messages WHERE id = ?`,
		attempt%10, attempt, attempt*60_000_000, attempt, status, []byte(reason), row)
}

func order(n int) *message.Message {
	msg := message.NewMessage(id(n), fmt.Appendf(nil, `{"order":%d}`, n))
	msg.Metadata.Set("account", "17")
	return msg
}

func (s *shop) exec(query string, args ...any) { s.Helper(); s.db.Do(s, query, args...) }

// day is a unit in which ages stay the same while a test runs.
const day = 24 * time.Hour

// ago is a time so long ago, and a little longer.
func ago(d time.Duration) int64 { return time.Now().Add(-d - 10*time.Second).UnixMicro() }

// stock gives billing messages in all states: rows 1 to 9.
func (s *shop) stock() {
	s.Helper()
	queue := rig.Queue(s, s.store, inbox.QueueConfig{Consumer: "billing"})
	for n := 1; n <= 9; n++ {
		msg := order(n)
		if n == 2 {
			msg.Metadata["name"], msg.Metadata["ce_dataschema"] = "OrderPlaced", "2"
			msg.Metadata["correlation_id"], msg.Metadata["causation_id"] = "checkout-9", id(20)
		}
		require.NoError(s, queue.Put(s.Context(), "orders", msg))
	}
	become := func(row int, status admin.Status, attempts int, failure string, group int, reason string) {
		s.exec(`UPDATE millrace_messages SET status = ?, attempts = ?, last_error = ?, error_group = ?, reason = ?, due_at = ?
			WHERE id = ?`, status, attempts, []byte(failure), group, []byte(reason),
			time.Now().Add(200*365*24*time.Hour).UnixMicro(), row)
	}
	become(3, admin.FailedRetryable, 2, "dial tcp: the bank does not answer", 4000, "")
	for row := 4; row <= 6; row++ {
		become(row, admin.Parked, 10, fmt.Sprintf("account %d has no owner", row), 3411, "10 attempts failed")
	}
	become(7, admin.FailedTerminal, 1, "payload: unexpected end of JSON input", 5000, "")
	become(8, admin.Held, 0, "", 0, "waits for version 4")
	become(9, admin.Settling, 1, "", 0, "")
	s.exec(`UPDATE millrace_messages SET aggregate = ?, version = 5 WHERE id = 8`, keycode.Encode("account 17"))
	s.version("account 17", 3)
	s.exec(`UPDATE millrace_messages SET due_at = ? WHERE id = 3`, time.Now().Add(time.Hour).UnixMicro())
	s.exec(`INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT consumer, message_id, payload_hash, 1, 0, received_at FROM millrace_messages WHERE status > 1`)
	s.exec(`UPDATE millrace_messages SET error_group = NULL, last_error = NULL WHERE id > 7`)
}

// version has an aggregate of billing be at a version.
func (s *shop) version(aggregate string, version int64) {
	s.Helper()
	s.exec(`INSERT INTO millrace_versions (consumer, aggregate, version, first_version, token, message_id, payload_hash)
		SELECT id, ?, ?, 1, 0, ?, 0 FROM millrace_consumers WHERE name = ?`, keycode.Encode(aggregate), version, []byte{}, []byte("billing"))
}

// work has mail handle messages: one that publishes, with copies, and one whose outcome is
// not settled.
func (s *shop) work() {
	s.Helper()
	s.handle(20, func(ctx context.Context) {
		for n := 30; n <= 31; n++ {
			msg := order(n)
			msg.SetContext(ctx)
			require.NoError(s, s.out.Publish("invoices", msg))
		}
		require.NoError(s, inbox.SetResult(ctx, map[string]int{"mails": 2}))
	})
	for _, copied := range []*message.Message{order(20), message.NewMessage(id(20), []byte("another payload"))} {
		require.False(s, s.mail(copied, func(context.Context) {}))
	}
	s.handle(21, func(context.Context) {})
	for i, step := range []struct {
		name, problem string
		state         int
	}{{"mail", "", 2}, {"payment", "the bank does not answer", 1}} {
		s.exec(`INSERT INTO millrace_steps (id, namespace, consumer, message_id, name, epoch, state, token, until, started_at, ended_at, problem)
			VALUES (?, ?, ?, ?, ?, 0, ?, 1, ?, ?, ?, ?)`, fmt.Appendf(nil, "sixteen bytes  %d", i), []byte(""), []byte("mail"), keycode.Encode(id(21)),
			[]byte(step.name), step.state, ago(day), ago(4*day), ago(3*day), []byte(step.problem))
	}
	consumer := s.db.Count(s, `SELECT id FROM millrace_consumers WHERE name = ?`, []byte("mail"))
	s.exec(`INSERT INTO millrace_outcomes (consumer, message_id, created_at, topic, messages) VALUES (?, ?, ?, ?, ?)`,
		consumer, keycode.Encode(id(21)), ago(3*day), []byte("receipts"), msgcode.Encode([]*message.Message{order(40)}))
}

// mail delivers a message to the consumer mail, and reports whether work was done.
func (s *shop) mail(msg *message.Message, work func(ctx context.Context)) (ran bool) {
	s.Helper()
	h, err := s.store.Handler(inbox.ConsumerConfig{Name: "mail", Key: inbox.ByUUID(), Options: inbox.Options{Window: 24 * time.Hour}},
		func(msg *message.Message) ([]*message.Message, error) {
			ran = true
			work(msg.Context())
			return nil, nil
		})
	require.NoError(s, err)
	_, err = h(msg)
	require.NoError(s, err)
	return ran
}

func (s *shop) handle(n int, work func(ctx context.Context)) {
	s.Helper()
	require.True(s, s.mail(order(n), work))
}

// produce leaves rows 1 to 4 in the outbox: two that are parked, one that waits behind, one
// to be tried again.
func (s *shop) produce() {
	s.Helper()
	for n := 50; n <= 53; n++ {
		require.NoError(s, s.out.Publish("payments", order(n)))
	}
	s.exec(`UPDATE millrace_outbox SET created_at = ?`, ago(4*day))
	for row, status := range map[int]int{1: 3, 2: 3, 3: 2, 4: 1} {
		s.exec(`UPDATE millrace_outbox SET status = ?, attempts = 10, last_error = ?, due_at = ?, blocked_key = key_hash WHERE id = ?`,
			status, `no queue is bound to "payments"`, ago(0), row)
	}
	s.exec(`INSERT INTO millrace_outbox_layout (id, generation, shards, target) VALUES (1, 1, 4, 4)`)
	s.exec(`INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (7, 'shop-1', 1, ?)`,
		time.Now().Add(time.Hour).UnixMicro())
	for shard, owner := range []int{7, 7, 8, 0} {
		s.exec(`INSERT INTO millrace_outbox_shards (generation, shard, owner) VALUES (1, ?, ?)`, shard, owner)
	}
}

// deploy lists two processes: one that runs, and one of the release before that was killed.
func (s *shop) deploy() {
	s.Helper()
	for name, p := range map[string]struct {
		version, serves string
		seen            int64
	}{
		"web-1/4711": {
			"v1.4.2", `[{"consumer":"billing","epoch":0,"queue":true,"gate":true},{"consumer":"mail","epoch":0,"handler":"send-mail"}]`,
			time.Now().Add(50 * time.Second).UnixMicro(), // it runs for long enough
		},
		"web-2/4711": {"v1.4.1", `[{"consumer":"billing","epoch":0,"queue":true,"gate":true}]`, ago(time.Hour)},
	} {
		s.exec(`INSERT INTO millrace_processes (namespace, name, token, host, pid, program, version, millrace, consumers, serves, started_at, seen_at)
			VALUES (?, ?, 1, ?, 4711, ?, ?, ?, ?, ?, ?, ?)`, []byte{}, []byte(name), []byte(name[:5]), []byte("example.com/shop/cmd/web"),
			[]byte(p.version), []byte("v0.9.0"), strings.Count(p.serves, "consumer"), []byte(p.serves), ago(2*day), p.seen)
	}
}

// run is a call on the database of the shop.
func (s *shop) run(args ...string) result {
	s.Helper()
	return call(s.T, s.db.DSN, args...)
}

func (s *shop) count(query string, args ...any) int {
	s.Helper()
	return s.db.Count(s, query, args...)
}

// serve says that a queue serves all consumers.
func (s *shop) serve() {
	s.Helper()
	s.exec(`UPDATE millrace_consumers SET served_until = ?`, time.Now().Add(time.Hour).UnixMicro())
}
