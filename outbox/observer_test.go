package outbox_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
)

// picker is an observer of one kind.
type picker struct {
	kind outbox.Kind
	told []outbox.Kind
}

func (p *picker) Observe(_ context.Context, e outbox.Event) { p.told = append(p.told, e.Kind) }
func (p *picker) Wants(k outbox.Kind) bool                  { return k == p.kind }

func TestObserversHearWhatTheyWant(t *testing.T) {
	db, out, done := exampleOutbox(outbox.Config{Standalone: true})
	defer done()
	var all, some []outbox.Kind
	var shards []int
	into := func(kinds *[]outbox.Kind) func(context.Context, outbox.Event) {
		return func(_ context.Context, e outbox.Event) { *kinds = append(*kinds, e.Kind) }
	}
	own := &picker{kind: outbox.KindParked}
	relay, err := outbox.NewRelay(db, picky{newPrinter()}, outbox.RelayConfig{
		MaxAttempts: 1,
		Observers: []outbox.Observer{outbox.On(into(&all)), nil, outbox.On(nil), own, outbox.On(into(&some), outbox.KindPublished, outbox.KindShards),
			outbox.On(func(_ context.Context, e outbox.Event) { shards = append(shards, e.Count) }, outbox.KindShards)},
	})
	require.NoError(t, err)
	require.NoError(t, out.Publish("notes",
		message.NewMessage("note-1", []byte("much too long")), message.NewMessage("note-2", []byte("short"))))
	_, err = relay.RelayBatch(t.Context())
	require.ErrorIs(t, err, errTooLong)
	assert.Subset(t, all, []outbox.Kind{outbox.KindShards, outbox.KindParked, outbox.KindPublished})
	assert.Equal(t, []outbox.Kind{outbox.KindShards, outbox.KindPublished, outbox.KindShards}, some)
	assert.Equal(t, []int{64, 0}, shards, "in the end it has none")
	assert.Equal(t, []outbox.Kind{outbox.KindParked}, own.told)
	assert.Zero(t, relay.Panics(), "nobody is no observer")
}

func TestKindsHaveNames(t *testing.T) {
	names := map[string]bool{}
	for k := outbox.KindPublished; k <= outbox.KindPurged; k++ {
		names[k.String()] = true
		assert.False(t, strings.HasPrefix(k.String(), "Kind("), k)
	}
	assert.Len(t, names, int(outbox.KindPurged), "each has its own")
	assert.Equal(t, "Kind(0)", outbox.Kind(0).String())
	assert.Equal(t, "Kind(255)", outbox.Kind(255).String())
}
