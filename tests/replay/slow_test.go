package replay_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/replay"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// slow is a broker that takes a while for each message, and does not look at contexts.
type slow struct{ rig.Publisher }

const aWhile = 300 * time.Millisecond

func (s *slow) Publish(topic string, msgs ...*message.Message) error {
	for range msgs {
		time.Sleep(aWhile)
	}
	return s.Publisher.Publish(topic, msgs...)
}

// stuck is a broker that answers when the context has ended.
type stuck struct{ rig.Publisher }

func (*stuck) Publish(_ string, msgs ...*message.Message) error {
	ctx := msgs[0].Context()
	<-ctx.Done()
	return ctx.Err()
}

// TestABatchMayTakeASecondForEachMessage: a batch whose bound is too short is never done, however often the replay is
// continued. SQLite works in the process, so that a bubble's time stands still meanwhile.
func TestABatchMayTakeASecondForEachMessage(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	b.orders(500)
	b.exec(`UPDATE millrace_outbox SET status = 4, sent_at = created_at`)
	slowly := rig.NewOutbox(t, b.db.DB, outbox.Config{OrderKey: func(string, *message.Message) (string, error) {
		time.Sleep(aWhile)
		return "", nil
	}})
	run := func(name string, to replay.Target) (status replay.Status, err error) {
		replayer, request := b.replayer(), b.request(name)
		request.To = to
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			status, err = replayer.Run(t.Context(), request)
			require.Greater(t, time.Since(began), time.Minute)
		})
		return status, err
	}
	to := &slow{}
	status, err := run("slow broker", replay.Publisher(to))
	require.NoError(t, err)
	assert.Equal(t, replay.Done, status.State)
	assert.Equal(t, 500, status.Sent)
	assert.Len(t, to.Messages(), 500)

	status, err = run("stuck broker", replay.Publisher(&stuck{}))
	require.ErrorContains(t, err, "a batch of 50 messages took longer than 1m50s: lower PerSecond")
	assert.Zero(t, status.Sent)

	status, err = run("slow outbox", replay.Outbox(slowly))
	require.NoError(t, err)
	assert.Equal(t, 500, status.Sent)
	assert.Equal(t, 500, b.pending())
}

// TestAMessageThatTakesTooLongIsNamed: Drain has no batches.
func TestAMessageThatTakesTooLongIsNamed(t *testing.T) {
	t.Parallel()
	b := newBed(t, testdb.On(t, "sqlite"))
	replayer, letter := b.replayer(), order(1)
	letter.Metadata.Set("topic_poisoned", "orders")
	synctest.Test(t, func(t *testing.T) {
		letters := make(chan *message.Message, 1)
		letters <- letter
		_, err := replayer.Drain(t.Context(), replay.Dead{
			Name: "dead", From: lettersOf(letters), Topic: "poison", To: replay.Publisher(&stuck{}), By: ada,
		})
		require.ErrorContains(t, err, letter.UUID)
		require.ErrorContains(t, err, "took longer than 1m1s")
	})
}
