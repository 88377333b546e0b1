package tests_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/testdb"
)

// A service freezes inside its handler, with its transaction open and its effect written.
// With the documented settings of the connection the server takes the claim from it, and
// the other service handles the message; thawed, the frozen one cannot commit.
//
// SQLite has no server that could take a lock from a frozen process; see the next test.
func TestFrozenHostLosesItsClaim(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"postgres", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testdb.On(t, dialect))
			limit := time.Second
			settings := b.settings(testdb.FrozenHosts(limit, 30*time.Second))
			settings.TwinWait = 20 * time.Second // only so that a slow machine is no reason to fail
			frozen, msg := b.freeze(settings)
			twin := process.Start(t, settings)
			asked := time.Now()
			twin.Deliver(process.Delivery{Message: msg})
			twin.Await(process.Acked, 1)
			t.Logf("the twin handled the message %v after it asked, the limit is %v",
				time.Since(asked).Round(10*time.Millisecond), limit)
			assert.Equal(t, 1, twin.Close()["completed"])
			assert.Equal(t, 1, b.effects())

			frozen.Thaw()
			frozen.GoOn() // its handler returns a success
			frozen.Await(process.Nacked, 1)
			failed := frozen.Await(process.Failed, 1)
			t.Logf("the frozen service: %s", failed[0].Error)
			assert.Equal(t, 1, b.effects(), "the frozen service committed")

			frozen.Deliver(process.Delivery{Message: msg})
			frozen.Await(process.Acked, 1)
			counts := frozen.Close()
			assert.Equal(t, 0, counts["completed"])
			assert.Equal(t, 1, counts["duplicate"])
			assert.Equal(t, 1, b.effects())
			b.nothingOpen()
		})
	}
}

// Without the settings the claim stays with the frozen service: copies give up, and come
// again, until it thaws and commits. On SQLite nothing else is possible: the file is locked
// by a process, and only its end frees it.
func TestFrozenHostKeepsItsClaimWithoutSettings(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		db.DSN = strings.Replace(db.DSN, "busy_timeout(10000)", "busy_timeout(200)", 1)
		b := newBed(t, db)
		settings := b.settings()
		settings.TwinWait = 500 * time.Millisecond
		twin := process.Start(t, settings)
		frozen, msg := b.freeze(settings)
		for n := range 2 {
			twin.Deliver(process.Delivery{Message: msg})
			twin.Await(process.Nacked, n+1)
			failed := twin.Await(process.Failed, n+1)
			assert.Contains(t, failed[n].Error, inbox.ErrInProgress.Error())
		}
		frozen.Thaw()
		frozen.GoOn()
		frozen.Await(process.Acked, 1)
		twin.Deliver(process.Delivery{Message: msg})
		twin.Await(process.Acked, 1)
		assert.Equal(t, 1, frozen.Close()["completed"])
		assert.Equal(t, 1, twin.Close()["duplicate"])
		assert.Equal(t, 1, b.effects())
	})
}

// freeze starts a service that freezes inside the handler of msg.
func (b *bed) freeze(s process.Settings) (*process.Process, process.Message) {
	b.Helper()
	p, msg := process.Start(b, s), letter()
	p.Deliver(process.Delivery{Message: msg, Stop: process.InHandler})
	require.Equal(b, process.InHandler, p.Await(process.At, 1)[0].Point)
	p.Freeze()
	return p, msg
}
