package replay

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"weak"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/testdb"
)

const megabyte = 1 << 20

// store is a source, and a broker, of messages of some sizes.
type store struct {
	sizes   []int
	payload []byte
	given   []weak.Pointer[message.Message]
	most    int   // messages that were in memory at once
	batches []int // bytes
	sent    int
}

func (*store) kind() string { return "store" }

// page returns messages that share their bytes.
func (s *store) page(_ context.Context, _ Filter, after, _ int64, limit int) (items []item, err error) {
	runtime.GC()
	alive := 0
	for _, p := range s.given {
		if p.Value() != nil {
			alive++
		}
	}
	if s.payload == nil {
		s.payload = make([]byte, 40*megabyte)
	}
	for i := int(after); i < len(s.sizes) && len(items) < limit; i++ {
		msg := message.NewMessage(fmt.Sprint(i), s.payload[:s.sizes[i]])
		s.given = append(s.given, weak.Make(msg))
		items = append(items, item{id: int64(i + 1), topic: "orders", msg: msg})
	}
	s.most = max(s.most, alive+len(items))
	return items, nil
}

func (s *store) count(context.Context, Filter, int64) ([]Count, error) {
	return []Count{{Topic: "orders", Messages: len(s.sizes), lastID: int64(len(s.sizes))}}, nil
}

func (*store) pinned(_ context.Context, f Filter) (Filter, error) { return f, nil }

// Publish is the broker.
func (s *store) Publish(_ string, msgs ...*message.Message) error {
	bytes := 0
	for _, msg := range msgs {
		bytes += len(msg.Payload)
	}
	if len(msgs) > 1 || bytes <= pageBytes {
		s.batches = append(s.batches, bytes)
	}
	s.sent += len(msgs)
	return nil
}

func (*store) Close() error { return nil }

func (s *store) replayer(t *testing.T) (*Replayer, Request) {
	t.Helper()
	db := testdb.On(t, "sqlite").DB
	in, err := inbox.NewStore(db, inbox.Config{WithoutPlugin: true, Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, in.Close(context.WithoutCancel(t.Context()))) })
	require.NoError(t, in.Migrate(t.Context()))
	r, err := New(db, in, Config{Logger: watermill.NopLogger{}})
	require.NoError(t, err)
	return r, Request{
		Name: "again", From: s, To: Publisher(s), PerSecond: 1_000_000, By: admin.Operator{Name: "ada", Reason: "a test"},
	}
}

func sizes(n, bytes int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = bytes
	}
	return all
}

// TestAPlanHoldsOnePage, although it looks at all messages.
func TestAPlanHoldsOnePage(t *testing.T) {
	t.Parallel()
	s := &store{sizes: sizes(LookAt+1, megabyte/2)}
	r, request := s.replayer(t)
	plan, err := r.Plan(t.Context(), request)
	require.NoError(t, err)
	assert.Equal(t, LookAt, plan.LookedAt)
	assert.LessOrEqual(t, s.most, 2*firstPage+pageBytes/(megabyte/2), "messages in memory")
}

// TestABatchIsBoundedByItsBytes, also where messages are suddenly larger.
func TestABatchIsBoundedByItsBytes(t *testing.T) {
	t.Parallel()
	s := &store{sizes: append(append(append(sizes(60, 10), sizes(100, megabyte)...), 40*megabyte, 40*megabyte), sizes(1000, 10)...)}
	r, request := s.replayer(t)
	status, err := r.Run(t.Context(), request)
	require.NoError(t, err)
	assert.Equal(t, Done, status.State)
	assert.Equal(t, len(s.sizes), s.sent)
	assert.Greater(t, len(s.batches), 4)
	for _, bytes := range s.batches {
		assert.LessOrEqual(t, bytes, pageBytes)
	}
}
