package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/internal/dialect"
)

// A statement that comes after the end of the lease succeeds and changes nothing.
func TestResultsThatCameTooLateForTheTable(t *testing.T) {
	for name, doubtful := range map[string]bool{"written": false, "written again": true} {
		t.Run(name, func(t *testing.T) {
			p := newPump(newTestRelay(t, oneLane(RelayConfig{})), newLease(), false)
			p.ledger.sent = []dialect.Row{{ID: 1}}
			p.flusher.failed = &flush{ledger: p.ledger, statements: p.ledger.statements(p.tables, 1, 0), doubtful: doubtful}
			p.ledger = newLedger(2)
			p.failure = errRefused
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := p.work(ctx, newKeeper(p.Relay), nil, nil)
			require.ErrorIs(t, err, errLeaseLost)
			require.ErrorIs(t, err, errCutOff)
			require.ErrorIs(t, err, errRefused, "the first failure, for RelayBatch")
		})
	}
}

// failures calls a function for each error that is logged.
type failures struct {
	watermill.NopLogger
	note func(msg string)
}

func (f failures) Error(msg string, _ error, _ watermill.LogFields) { f.note(msg) }

func (f failures) With(watermill.LogFields) watermill.LoggerAdapter { return f }

// Who is told to stop after a loss has not had these messages recorded either.
func TestARelayThatStopsAfterItsMessagesWereCutOff(t *testing.T) {
	for name, terms := range map[string]int{"before the next term": 1, "before the database is back": 2} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			over := 0
			r := newTestRelay(t, oneLane(RelayConfig{Drain: 10 * time.Millisecond, Logger: failures{note: func(msg string) {
				if msg == "outbox: the relay starts over" {
					if over++; over == terms {
						stop()
					}
				}
			}}}))
			r.to = publishing(func(string, ...*message.Message) error {
				for _, do := range []string{
					`CREATE TRIGGER out BEFORE INSERT ON millrace_outbox_relays BEGIN SELECT RAISE(ABORT, 'out of order'); END`,
					`DELETE FROM millrace_outbox_relays`,
				} {
					_, err := r.db.ExecContext(t.Context(), do) //nolint:contextcheck // what happens beside the relay
					assert.NoError(t, err)
				}
				<-ctx.Done()
				return nil
			})
			out, err := NewPublisher(r.db.DB, Config{})
			require.NoError(t, err)
			require.NoError(t, InTx(t.Context(), r.db.DB, func(ctx context.Context, _ *sqlx.Tx) error {
				return out.Publish("t", message.NewMessageWithContext(ctx, "1", nil))
			}))
			err = r.Run(ctx)
			require.ErrorIs(t, err, errCutOff)
			require.Equal(t, terms, over)
		})
	}
}

// The server may have carried out what it did not answer.
func TestTheGivingUpOfShardsWithoutAnAnswer(t *testing.T) {
	for name, carriedOut := range map[string]bool{"carried out": true, "not carried out": false} {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(newTestRelay(t, RelayConfig{}))
			require.NoError(t, k.begin(t.Context()))
			_, err := k.beat(t.Context())
			require.NoError(t, err)
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			require.Error(t, k.free(canceled, 1))
			if carriedOut {
				_, err = k.db.Exec(t.Context(), k.sql.ClaimShards, 0, k.generation, (allShards &^ 1).mask(), k.lease.token)
				require.NoError(t, err)
			}
			_, err = k.beat(t.Context())
			require.NoError(t, err)
			assert.Equal(t, allShards, k.owned)
		})
	}
}

// The database has ended the lease early, after its clock was set for instance, and the keeper does not know yet.
func TestALeaseThatOnlyTheDatabaseHasEnded(t *testing.T) {
	k := newKeeper(newTestRelay(t, oneLane(RelayConfig{})))
	require.NoError(t, k.begin(t.Context()))
	p := newPump(k.Relay, k.lease, false)
	p.assigned, p.shards = true, allShards
	p.put(t, "k", dialect.OutboxPending, 1, 2)
	p.reads(t)
	assert.Len(t, p.deliver(t), 2)
	_, err := p.db.ExecContext(t.Context(), `UPDATE millrace_outbox_relays SET until = 1`)
	require.NoError(t, err)
	p.flush(t.Context())
	p.flushed(<-p.flusher.done)
	p.reads(t)
	require.Empty(t, ids(p.lanes[0].queue), "they would be sent again")
	assert.False(t, p.maySend())
	assert.True(t, k.rest(t.Context(), time.Hour), "the keeper looks at once")
	_, err = k.beat(t.Context())
	assert.ErrorIs(t, err, errLeaseLost)
}
