package bench_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/dialect"
	millrace "github.com/millrace-go/millrace/middleware"
)

// BenchmarkBatchGate is G1 through batches: every version of every aggregate in random order, against batches without
// a gate.
func BenchmarkBatchGate(b *testing.B) {
	db := database(b)
	for _, hands := range []int{inFlight, 4 * inFlight} {
		rates, held := series{}, 0.0
		for turn := range pick(3, 1) {
			for _, way := range []string{"random", "in order", "without the gate"} {
				run(b, db, `TRUNCATE millrace_claims`, `TRUNCATE millrace_messages`, `TRUNCATE millrace_history`, `VACUUM ANALYZE millrace_versions`)
				settleDown(b, db)
				s := &shuffled{way: way, hands: hands, batches: true, versions: pick(int64(50), 2), done: make(chan struct{})}
				rates.add(way, s.rate(b, db, fmt.Sprint("batch ", way, hands, turn, " ")))
				if way == "random" {
					held += 100 * float64(s.held.Load()) / float64(pick(3, 1)*s.messages())
				}
			}
		}
		for way, bound := range map[string]float64{"random": 0.8, "in order": 0.8} {
			atLeast(fmt.Sprintf("P16/gate/%s-%d", way, hands), bound).judge(b, rates.over(way, "without the gate"),
				"%.0f/s, in random order %.0f%% were held; without the gate %.0f/s", median(rates[way]), held, median(rates["without the gate"]))
		}
	}
	rates := series{}
	conn, err := pgx.Connect(b.Context(), db.DSN)
	require.NoError(b, err)
	defer conn.Close(context.WithoutCancel(b.Context())) //nolint:errcheck // nothing is open
	for range pick(7, 1) {
		for way, batch := range map[string]func(context.Context, *pgx.Conn, int) error{"held": bareHeldBatch, "bare": bareBatch} {
			run(b, db, `TRUNCATE millrace_claims`, `TRUNCATE millrace_messages`)
			settleDown(b, db)
			n, began := 0, time.Now()
			for ; time.Since(began) < phase(); n += 64 {
				require.NoError(b, batch(b.Context(), conn, 64))
			}
			rates.add(way, float64(n)/time.Since(began).Seconds())
		}
	}
	atLeast("P16/gate/bare", 0.8).judge(b, rates.over("held", "bare"), "%.0f/s; without holding %.0f/s", median(rates["held"]), median(rates["bare"]))
}

// bareHeldBatch is [bareBatch] for messages that are stored by one transaction, in one flight, and handled by another. It
// knows no versions, and nobody looks for the messages.
func bareHeldBatch(ctx context.Context, conn *pgx.Conn, n int) error {
	keys := randomKeys(n)
	store := &pgx.Batch{}
	store.Queue(`BEGIN`)
	store.Queue(`
		INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT 32767, k, 7, 7, 0, 7 FROM unnest($1::BYTEA[]) k ON CONFLICT (consumer, message_id) DO NOTHING`, keys)
	store.Queue(`
		INSERT INTO millrace_messages
			(consumer, message_id, status, topic, uuid, metadata, payload, payload_hash, received_at, due_at, aggregate, version)
		SELECT 32767, k, 7, 'orders', k, '{}', $2, 7, 7, $3, k, 2 FROM unnest($1::BYTEA[]) k`, keys, []byte(payload), int64(dialect.NeverDue))
	store.Queue(`COMMIT`)
	if err := conn.SendBatch(ctx, store).Close(); err != nil {
		return err
	}
	begin := &pgx.Batch{}
	begin.Queue(`BEGIN`)
	begin.Queue(`UPDATE millrace_claims SET result = 1 WHERE consumer = 32767 AND message_id = ANY($1::BYTEA[])`, keys)
	if err := conn.SendBatch(ctx, begin).Close(); err != nil {
		return err
	}
	changes := change(n)
	if _, err := conn.Exec(ctx, updateMany, slices.Collect(maps.Keys(changes)), slices.Collect(maps.Values(changes))); err != nil {
		return err
	}
	end := &pgx.Batch{}
	end.Queue(`DELETE FROM millrace_messages WHERE consumer = 32767 AND message_id = ANY($1::BYTEA[])`, keys)
	end.Queue(`COMMIT`)
	return conn.SendBatch(ctx, end).Close()
}

// batch is the handler of batches, which changes the accounts of all messages by one statement.
func (s *shuffled) batch(store *inbox.Store) message.NoPublishHandlerFunc {
	batch := millrace.Batch{Inbox: millrace.Inbox{Store: store}}
	if s.way != "without the gate" {
		batch.Gate = &millrace.VersionGate{}
	}
	return batch.ConsumerHandler(func(ctx context.Context, msgs []*message.Message) error { return together(ctx, len(msgs)) })
}
