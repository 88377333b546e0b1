package replay_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/replay"
	"github.com/millrace-go/millrace/tests/process"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// replayingName is its name among the programs that the test binary can be.
const replayingName = "REPLAYING"

// replaying is what a process is started with that replays until it stands.
type replaying struct {
	Driver, DSN, Name string
	After             int // messages
	PerSecond         int
	Where             where
}

// where a process is killed.
type where string

const (
	between where = "" // two batches
	within  where = "within a transaction that has moved the cursor"
	stored  where = "at once after messages were stored"
)

// rebuild replays until it stands, where it is to be killed.
func rebuild(c *process.Child, s replaying) error {
	c.Say(process.Event{Kind: process.Ready})
	stand := func() {
		c.Say(process.Event{Kind: process.At})
		select {}
	}
	db, err := sqlx.Open(s.Driver, s.DSN)
	if err != nil {
		return err
	}
	store, err := inbox.NewStore(db, inbox.Config{})
	if err != nil {
		return err
	}
	begun := 0
	out, err := outbox.NewPublisher(db, outbox.Config{OrderKey: func(topic string, msg *message.Message) (string, error) {
		if begun++; s.Where == within && begun > s.After {
			stand()
		}
		return replay.OrderKey(topic, msg)
	}, AfterCommit: func() {
		if s.Where == stored && begun > s.After {
			stand()
		}
	}})
	if err != nil {
		return err
	}
	replayer, err := replay.New(db, store, replay.Config{})
	if err != nil {
		return err
	}
	_, err = replayer.Run(context.Background(), replay.Request{
		Name: s.Name, From: replay.Archive(out), To: replay.Outbox(out), By: ada, Filter: replay.Filter{Topic: "orders"},
		PerSecond: s.PerSecond,
		Progress: func(status replay.Status) {
			if s.Where == between && status.Sent >= s.After {
				stand()
			}
		},
	})
	return err
}

// killed starts a process that replays, and kills it where it stands.
func (b *bed) killed(s replaying) {
	b.Helper()
	p := process.Self(b, replayingName, s)
	p.Await(process.At, 1)
	p.Kill()
}

// handled waits for n orders behind the first ones. Each eighth of them has the bed's patience.
func (b *bed) handled(first, n int) {
	b.Helper()
	for part := 1; part <= 8; part++ {
		rig.Eventually(b, fmt.Sprintf("%d eighths of the orders are sent", part), func() bool { return b.sent() >= first+n*part/8 })
	}
	rig.Eventually(b, "all orders are handled", func() bool { return b.pending() == 0 })
}

// TestARebuildBesideMails replays an archive into a projection of a new epoch and a consumer that mails, by
// processes that are killed on the way.
func TestARebuildBesideMails(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		n, rate := 800, 250 // more than the batches at which processes are killed, of which a second has one
		if testdb.Long() && db.Dialect == "postgres" {
			n, rate = 100_000, 1_000_000
		}
		began := time.Now()
		lap := func(what string) {
			t.Logf("%s: %s, %.1f s", db.Dialect, what, time.Since(began).Seconds())
			began = time.Now()
		}
		b := newBed(t, db)
		b.orders(n)
		b.relay()
		b.handled(0, n)
		b.truth(n)
		lap(fmt.Sprintf("%d orders handled", n))

		b.exec(`UPDATE projection SET total = 0, orders = 0`)
		b.epoch(1)
		begun := replaying{Driver: db.Driver, DSN: db.DSN, Name: "rebuild", PerSecond: rate}
		for _, where := range []where{between, within, stored} {
			begun.After, begun.Where = n/4, where
			b.killed(begun)
		}
		half, err := b.replayer().Status(t.Context(), "rebuild")
		require.NoError(t, err)
		assert.Equal(t, replay.Running, half.State)
		assert.GreaterOrEqual(t, half.Sent, n/4)
		assert.Less(t, half.Sent, n)
		lap(fmt.Sprintf("killed three times, at %d", half.Sent))

		status := b.run(b.request("rebuild"))
		assert.Equal(t, replay.Done, status.State)
		assert.Equal(t, n, status.Sent)
		lap("gone on with")
		b.handled(n, n)
		lap("handled again")
		b.truth(n)
		messages, mails := b.mailed()
		assert.Equal(t, n, messages)
		assert.Equal(t, n, mails, "no mail went out twice")
		assert.Equal(t, 2*n, b.count(`SELECT COUNT(*) FROM millrace_outbox`), "nothing was stored twice")
		assert.Equal(t, 0, b.count(`SELECT COUNT(*) FROM millrace_messages`))
		t.Logf("%s: %d replayed, %d mails, %d messages in the outbox", db.Dialect, status.Sent, mails, 2*n)
	})
}
