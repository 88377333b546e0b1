package batch_test

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/servers"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A server that answers nothing to the claims of a batch is no other process with one of its messages.
func TestOutageAtTheClaimsOfABatch(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postgres", "mysql"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testdb.On(t, name)
			wire := servers.Proxy(t, regexp.MustCompile(`[\w.]+:\d+\b`).FindString(db.DSN[strings.LastIndex(db.DSN, "@"):]))
			b := newBed(t, db)
			pool := faults.Open(t, db.Open(t, testdb.Via(wire.Addr())))
			h := b.batch(3, apply, on(b.newStore(pool.DB)), func(b *millrace.Batch) {
				b.Inbox.Timeout, b.Inbox.TwinWait = 6*time.Second, 100*time.Millisecond
			})
			before, during := newMessages(3), newMessages(3)
			b.must(h, before)

			pool.Set(faults.Plan{Before: faults.At("INTO millrace_claims", func() error { wire.Freeze(); return nil })})
			for _, err := range b.errs(start(h, during)) {
				assert.ErrorIs(t, err, inbox.ErrUnavailable)
			}
			require.NotZero(t, b.events.Count("outage"))
			require.ErrorContains(t, b.events.All("outage")[0].Err, "nor the claim before it")

			pool.Set(faults.Plan{})
			wire.Thaw()
			rig.Eventually(t, "the database serves again", func() bool {
				for _, err := range b.errs(start(h, copies(during))) {
					if err != nil {
						return false
					}
				}
				return true
			})
			b.once(append(before, during...))
			assert.Zero(t, b.events.Count("failed"))
		})
	}
}
