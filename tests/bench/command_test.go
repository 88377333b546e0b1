package bench_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/dialect"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// BenchmarkCommand is how long an operator waits for status, list and explain, beside many
// claims, open messages and rows of the outbox: for the calls that the command makes, and
// for the command itself. The goal is that 95 of 100 take less than 200 ms.
func BenchmarkCommand(b *testing.B) {
	o := observed(b)
	for _, look := range []struct {
		name string
		call func(context.Context) error
		args []string
	}{
		{"status", o.status, []string{"status"}},
		{"list", o.list, []string{"list"}},
		{"list-parked", o.parked, []string{"list", "--consumer", "consumer-3", "--status", "parked", "--topic", "rare"}},
		{"explain", o.explain, []string{"explain", o.key}},
	} {
		b.Run(look.name, func(b *testing.B) {
			calls, commands := []float64{}, []float64{}
			for range pick(60, 2) {
				calls = append(calls, took(b, func() error { return look.call(b.Context()) }))
				commands = append(commands, took(b, func() error { return o.command(b, look.args...) }))
			}
			b.ReportMetric(p95(calls), "p95-call-ms")
			b.ReportMetric(p95(commands), "p95-command-ms")
			b.ReportMetric(0, "ns/op")
			tell(fmt.Sprintf("command/%s p95 %.1f ms, its calls alone %.1f ms; medians %.1f and %.1f; goal≤200 ms",
				look.name, p95(commands), p95(calls), median(commands), median(calls)))
		})
	}
}

// observer is an operator on a large database.
type observer struct {
	db     *testdb.DB
	store  *inbox.Store
	out    *outbox.Publisher
	binary string
	key    string // of a message that produced others
}

func observed(b *testing.B) *observer {
	b.Helper()
	o := &observer{db: testdb.On(b, dialect.PostgresName)}
	var err error
	o.binary, err = rig.Build(b.TempDir(), "github.com/millrace-go/millrace/cmd/millrace")
	require.NoError(b, err)
	o.store = newStore(b, o.db)
	o.out = rig.NewOutbox(b, o.db.DB, outbox.Config{})
	require.NoError(b, o.store.Migrate(b.Context()))
	o.fill(b, pick(1_000_000, 10_000), pick(100_000, 1_000), pick(100_000, 1_000))
	return o
}

// fill makes five consumers with claims of the last days, open messages in all states, and
// an outbox that gets a thousand rows a second.
func (o *observer) fill(b *testing.B, claims, open, stored int) {
	b.Helper()
	now := time.Now().UnixMicro() // the same for all: it takes a while
	uuid := func(i string) string { return fmt.Sprintf(`('\x01'::BYTEA || decode(md5((%s)::TEXT), 'hex'))`, i) }
	run(b, o.db,
		`INSERT INTO millrace_consumers (id, namespace, name, epoch, key_source, retention, window_us, created_at)
			SELECT i, '', convert_to('consumer-' || i, 'UTF8'), 0, 'uuid', 604800000000, 0, 1 FROM generate_series(1, 5) i`,
		fmt.Sprintf(`INSERT INTO millrace_claims (processed_at, payload_hash, token, consumer, result, message_id)
			SELECT %d - i * 1000, i, 1, i %% 5 + 1, 1, %s FROM generate_series(1, %d) i`, now, uuid("i"), claims),
		fmt.Sprintf(`INSERT INTO millrace_claims (processed_at, payload_hash, token, consumer, result, message_id)
			SELECT %d, i, 1, i %% 5 + 1, 0, %s FROM generate_series(1, %d) i`, now, uuid("-i"), open),
		fmt.Sprintf(`INSERT INTO millrace_messages (consumer, message_id, status, attempts, topic, uuid, metadata, payload,
				payload_hash, received_at, due_at, last_error, error_group, reason)
			SELECT i %% 5 + 1, %s, (i / 5) %% 7 + 1, i %% 9, convert_to(CASE i %% 100 WHEN 7 THEN 'rare' ELSE 'orders' END, 'UTF8'),
				convert_to(md5(i::TEXT), 'UTF8'), '\x00', convert_to(repeat('x', 500), 'UTF8'), i, %d - i * 1000,
				%d + i * 1000, 'account 17 has no owner', i %% 20, 'an attempt failed'
			FROM generate_series(1, %d) i`, uuid("-i"), now, now, open),
		fmt.Sprintf(`INSERT INTO millrace_outbox (key_hash, created_at, status, due_at, topic, uuid, metadata, payload, cause)
			SELECT i, %d - (%d - i) * 1000, CASE i %% 3 WHEN 0 THEN 4 ELSE 0 END, 0, 'invoices', md5(i::TEXT), '{}',
				convert_to(repeat('x', 500), 'UTF8'), 'consumer-' || ((%d - i) %% 5 + 1) || '/' || md5((%d - i)::TEXT)::UUID
			FROM generate_series(1, %d) i`, now, stored, stored, stored, stored),
		`VACUUM ANALYZE`)
	require.NoError(b, o.db.GetContext(b.Context(), &o.key, `SELECT md5('505')::UUID::TEXT`))
}

func (o *observer) status(ctx context.Context) error {
	if _, err := admin.New(o.store).Backlog(ctx, admin.BacklogOptions{}); err != nil {
		return err
	}
	if _, err := o.out.Backlog(ctx, outbox.BacklogOptions{}); err != nil {
		return err
	}
	if _, err := o.out.Shards(ctx); err != nil {
		return err
	}
	_, err := admin.New(o.store).Tables(ctx)
	return err
}

func (o *observer) list(ctx context.Context) error {
	_, err := admin.New(o.store).Find(ctx, admin.Filter{}, 0, 50)
	return err
}

func (o *observer) parked(ctx context.Context) error {
	_, err := admin.New(o.store).Find(ctx, admin.Filter{Consumer: "consumer-3", Status: admin.Parked, Topic: "rare"}, 0, 50)
	return err
}

func (o *observer) explain(ctx context.Context) error {
	story, err := admin.New(o.store).Story(ctx, o.key)
	if err != nil {
		return err
	}
	for _, c := range story.Claims {
		entries, err := o.out.CausedBy(ctx, c.Consumer, o.key, c.ProcessedAt, c.ProcessedAt.Add(25*time.Second))
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return fmt.Errorf("consumer %s caused nothing", c.Consumer)
		}
	}
	return nil
}

func (o *observer) command(b *testing.B, args ...string) error {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), o.binary, args...)
	cmd.Env = append(os.Environ(), "MILLRACE_DSN="+o.db.DSN)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, said)
	}
	return nil
}

// took is how many milliseconds work takes.
func took(b *testing.B, work func() error) float64 {
	b.Helper()
	began := time.Now()
	require.NoError(b, work())
	return float64(time.Since(began).Microseconds()) / 1000
}

// p95 is what 95 of 100 values do not exceed.
func p95(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)*95/100, len(sorted)-1)]
}
