package outbox

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/internal/dialect"
)

func TestARowThatIsNoMessageIsParkedInItsTurn(t *testing.T) {
	key, metadata := "k", `{"a": "b", "n": 1}`
	row := letterRow{ID: 2, Hash: hash(key), OrderKey: &key, Topic: "t", UUID: "2", Metadata: &metadata}
	broken := row.letter(time.Now())
	assert.Nil(t, broken.msg.Metadata)

	var given []string
	to := publishing(func(_ string, msgs ...*message.Message) error {
		for _, m := range msgs {
			given = append(given, m.UUID)
		}
		return nil
	})
	r := &run{letters: []*letter{mail(1, key, "t"), broken, mail(3, key, "t"), mail(4, "", "t")}}
	(&lane{outside: newOutside(watermill.NopLogger{}), to: to, may: always, burst: 10}).publish(r)
	sent, failed, untried := fateOf(r)
	assert.Equal(t, []string{"1", "4"}, given)
	assert.Equal(t, []int64{1, 4}, sent)
	assert.Equal(t, []int64{2}, failed)
	assert.Equal(t, []int64{3}, untried)

	p := newTestPump(t, oneLane(RelayConfig{MaxAttempts: 5}))
	p.settle(t.Context(), r)
	assert.Equal(t, int64(2), p.blocked[hash(key)].head)
	if assert.Len(t, p.ledger.aside, 1) {
		assert.Equal(t, dialect.OutboxParked, p.ledger.aside[0].Status, "trying again would change nothing")
		assert.Zero(t, p.ledger.aside[0].Attempts)
	}
	assert.Equal(t, []int64{3}, ids(p.ledger.hold))
}
