package batch_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/keycode"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestKeysAreClaimedInOneOrder: a batch that waits for its lowest key has claimed no other yet, in whatever order its
// messages came. Otherwise two batches could each have the key for which the other waits.
func TestKeysAreClaimedInOneOrder(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "postgres"))
	b.must(b.batch(1, apply), newMessages(1)) // registers the consumer
	rig.Eventually(t, "a batch waits for long enough to be looked at", b.claimsInOrder)
}

// claimsInOrder reports whether it could look at a batch that waits for its lowest key.
func (b *bed) claimsInOrder() (seen bool) {
	b.Helper()
	low, high := newMessages(1)[0], newMessages(1)[0]
	if low.UUID > high.UUID {
		low, high = high, low
	}
	free, err := b.claimed(low)
	defer free()
	require.NoError(b, err)
	h := b.batch(2, apply)
	answers := []<-chan error{rig.Handle(h, high)}
	answers = append(answers, rig.Handle(h, low))
	defer func() {
		free()
		for _, err := range b.errs(answers) {
			require.NoError(b, err)
		}
	}()
	rig.Eventually(b, "the batch waits", b.waits)
	began := time.Now()
	end, taken := b.claimed(high)
	end()
	if time.Since(began) < 300*time.Millisecond && b.waits() {
		require.NoError(b, taken, "the batch has the higher key, and waits for the lower one")
		return true
	}
	return false
}

// claimed claims the key of a message in a transaction of somebody else, or returns an error if it is taken.
func (b *bed) claimed(msg *message.Message) (free func(), err error) {
	b.Helper()
	ctx := context.WithoutCancel(b.Context())
	tx, err := b.db.BeginTxx(ctx, nil)
	require.NoError(b, err)
	_, err = tx.ExecContext(ctx, `SET LOCAL lock_timeout = 100`)
	require.NoError(b, err)
	_, err = tx.ExecContext(ctx, tx.Rebind(`INSERT INTO millrace_claims (consumer, message_id, payload_hash, token, result, processed_at)
		SELECT MAX(id), ?, 1, 1, 1, 1 FROM millrace_consumers`), keycode.Encode(msg.UUID))
	return func() { _ = tx.Rollback() }, err
}

// waits reports whether a statement waits for another transaction.
func (b *bed) waits() bool {
	b.Helper()
	return b.db.Count(b, `SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`) > 0
}
