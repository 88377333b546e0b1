package exhaust_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/inboxtest"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAWrongBatchIsFound: the function keeps messages of a try that failed, and books them again.
func TestAWrongBatchIsFound(t *testing.T) {
	testdb.Turn(t, 2, seconds)
	t.Parallel()
	for _, dialect := range testdb.Sample(t, 1, all) {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			for name, keeps := range map[string]bool{"right": false, "wrong": true} {
				s := service{inputs: payments, hands: len(payments), want: booked, wire: func(p *inboxtest.Process, store *inbox.Store) error {
					var mu sync.Mutex // messages that are alone come at once
					var kept []*message.Message
					batch := millrace.Batch{Inbox: millrace.Inbox{Store: store, Timeout: timeout}, Max: len(payments), Linger: 50 * time.Millisecond}
					p.Router.AddConsumerHandler("book", "payments", p.Subscriber, batch.ConsumerHandler(func(ctx context.Context, msgs []*message.Message) error {
						todo := msgs
						if keeps {
							mu.Lock()
							kept = append(kept, msgs...)
							todo = slices.Clone(kept)
							mu.Unlock()
						}
						for _, msg := range todo {
							if err := bookIn(ctx, msg); err != nil {
								return err
							}
						}
						mu.Lock()
						defer mu.Unlock()
						kept = nil
						return nil
					}))
					return nil
				}}.scenario()
				s.Databases = databases(t, dialect, 2)
				heard := &heard{TB: t}
				inboxtest.InterruptedStatement(heard, s)
				for tries := 0; keeps && heard.String() == "" && tries < 20; tries++ { // on a busy machine, each interruption may come too late
					inboxtest.InterruptedStatement(heard, s)
				}
				if keeps {
					assert.Contains(t, heard.String(), "the ledger is", name)
				} else {
					assert.Empty(t, heard.String(), name)
				}
			}
		})
	}
}

// heard keeps what a test would be told.
type heard struct {
	testing.TB
	mu    sync.Mutex
	lines []string
}

func (h *heard) Errorf(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.lines, "\n")
}
