package outbox_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/faults"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

var relayParkedBodies = []testdb.Body{
	{Name: "a parked message holds its key", Why: "what is behind it may depend on it, until an operator has decided", Run: strictly(func(t *testing.T, p *post, b *strict) {
		msgs := b.letters("k", 4)
		b.refusing(refuses(outbox.Permanent(errRefused), msgs[1].UUID))
		p.relayTo(b, holding)
		ids := p.store("orders", msgs...)
		p.awaitParked(ids[1])
		later := p.store("orders", b.letters("k", 2)...)
		b.awaitAll(append(p.store("orders", b.letters("other", 3)...), ids[0]))
		for _, held := range append(append([]string{}, ids[2:]...), later...) {
			p.awaitStatus(held, rowHeld)
			assert.Zero(t, b.given(held))
		}
		rig.Eventually(p, "what was sent is written off", func() bool { return p.rows() == 5 })
		figures := backlog(p)
		assert.Positive(t, figures.OldestParked)
		figures.OldestParked = 0
		assert.Equal(t, outbox.Backlog{Held: outbox.Count{N: 4}, Parked: outbox.Count{N: 1}}, figures)

		b.refusing(nil)
		require.NoError(t, p.out.Retry(t.Context(), p.awaitParked(ids[1]).ID, ann))
		all := slices.Concat(ids, later)
		p.sentOnce(b, all)
	})},
	{Name: "a parked message lets its key go on", Why: "Continue says so", Run: strictly(func(t *testing.T, p *post, b *strict) {
		msgs := b.letters("k", 4)
		b.excuse(msgs[1])
		b.refusing(refuses(outbox.Permanent(errRefused), msgs[1].UUID))
		// The second time it is one that was set aside, with messages held behind it.
		p.relayTo(b, continuing, func(c *outbox.RelayConfig) { c.MaxAttempts = 2 })
		ids := p.store("orders", msgs...)
		parked := p.awaitParked(ids[1])
		rest := slices.Delete(slices.Clone(ids), 1, 2)
		b.awaitAll(rest)
		rest = append(rest, p.store("orders", b.letters("k", 2)...)...)
		b.awaitAll(rest)
		b.once(rest)

		b.refusing(nil)
		require.NoError(t, p.out.Retry(t.Context(), parked.ID, ann))
		p.allSent(b, ids[1:2])
	})},
	{Name: "what an operator decides", Why: "every decision is carried out once, and written down", Run: func(t *testing.T, db *testdb.DB) {
		ctx := t.Context()
		p, b := newPost(t, db), newStrict(t)
		msgs := append(b.letters("k", 2), b.letters("", 1)...)
		b.excuse(msgs[0])
		b.refusing(func(string, *message.Message) error { return outbox.Permanent(errRefused) })
		p.relayTo(b, holding)
		ids := p.store("orders", msgs...)
		p.awaitParked(ids[0])
		p.awaitParked(ids[2])
		p.awaitStatus(ids[1], rowHeld)

		all, err := p.out.Parked(ctx, 0, 10)
		require.NoError(t, err)
		require.Len(t, all, 2)
		first, last := all[0], all[1]
		assert.Less(t, first.ID, last.ID)
		assert.Equal(t, ids[0], first.Message.UUID)
		assert.Equal(t, msgs[0].Payload, first.Message.Payload)
		assert.Equal(t, msgs[0].Metadata, first.Message.Metadata)
		assert.Equal(t, "orders", first.Topic)
		assert.Equal(t, "k", first.OrderKey)
		assert.Empty(t, last.OrderKey)
		assert.Equal(t, 1, first.Attempts)
		assert.Equal(t, "refused", first.Error)
		assert.False(t, first.At.IsZero())
		list, err := p.out.ListParked(ctx, 0, 10)
		require.NoError(t, err)
		require.Len(t, list, 2)
		for i, listed := range list {
			assert.Nil(t, listed.Message.Payload)
			assert.Equal(t, all[i].Message.UUID, listed.Message.UUID)
			assert.Equal(t, all[i].Message.Metadata, listed.Message.Metadata)
			listed.Message = all[i].Message
			assert.Equal(t, all[i], listed)
		}
		one, err := p.out.ListParked(ctx, first.ID, 1)
		require.NoError(t, err)
		require.Len(t, one, 1)
		assert.Equal(t, last.ID, one[0].ID)
		found, err := p.out.FindParked(ctx, last.ID)
		require.NoError(t, err)
		found.Message, one[0].Message = nil, nil
		assert.Equal(t, one[0], found)
		shown, err := p.out.Reveal(ctx, first.ID, ann)
		require.NoError(t, err)
		assert.Equal(t, msgs[0].Payload, shown.Message.Payload)
		assert.Equal(t, first.Error, shown.Error)
		page, err := p.out.Parked(ctx, first.ID, 1)
		require.NoError(t, err)
		require.Len(t, page, 1)
		assert.Equal(t, last.ID, page[0].ID)

		for _, limit := range []int{0, -1} {
			_, err := p.out.Parked(ctx, 0, limit)
			assert.ErrorContains(t, err, fmt.Sprintf("limit %d is less than 1", limit))
			_, err = p.out.ListParked(ctx, 0, limit)
			assert.ErrorContains(t, err, fmt.Sprintf("limit %d is less than 1", limit))
		}

		for _, nobody := range []outbox.Operator{{}, {Name: "ann"}, {Reason: "why"}} {
			assert.ErrorContains(t, p.out.Retry(ctx, first.ID, nobody), "the Operator needs a Name and a Reason")
			assert.ErrorContains(t, p.out.Discard(ctx, first.ID, nobody), "the Operator needs a Name and a Reason")
			_, err := p.out.Reveal(ctx, first.ID, nobody)
			assert.ErrorContains(t, err, "the Operator needs a Name and a Reason")
		}
		held := p.row(ids[1])
		for id, want := range map[int64]error{held.ID: outbox.ErrWrongState, last.ID + 1: outbox.ErrNotFound, -1: outbox.ErrNotFound} {
			_, err := p.out.Reveal(ctx, id, ann)
			_, missed := p.out.FindParked(ctx, id)
			for _, err := range []error{err, missed, p.out.Retry(ctx, id, ann), p.out.Discard(ctx, id, ann)} {
				assert.ErrorIs(t, err, want)
				assert.Equal(t, id == held.ID, strings.Contains(err.Error(), "it is HELD, and only PARKED"))
			}
		}

		b.refusing(nil)
		bob := outbox.Operator{Name: "bob", Reason: "a test order"}
		require.NoError(t, p.out.Discard(ctx, first.ID, bob))
		assert.ErrorIs(t, p.out.Discard(ctx, first.ID, bob), outbox.ErrNotFound, "a second time")
		require.NoError(t, p.out.Retry(ctx, last.ID, ann))
		p.allSent(b, ids[1:])
		assert.ErrorIs(t, p.out.Retry(ctx, last.ID, ann), outbox.ErrNotFound, "it was sent")
		b.once(ids[1:])
		assert.Zero(t, b.counts()[ids[0]])
		assert.Equal(t, []string{
			"ann|outbox reveal|the queue exists now|" + ids[0] + "|to topic orders",
			"bob|outbox discard|a test order|" + ids[0] + "|to topic orders",
			"ann|outbox retry|the queue exists now|" + ids[2] + "|to topic orders",
		}, p.audit(ctx))
	}},
	{Name: "a decision that is overtaken", Why: "gone is ErrNotFound, another state ErrWrongState; nothing is written down", Run: func(t *testing.T, db *testdb.DB) {
		ctx, p, pool := t.Context(), newPost(t, db), faults.Open(t, db)
		id := p.row(p.send("orders", "", 1)[0]).ID
		out := rig.NewOutbox(t, pool.DB, outbox.Config{Standalone: true})
		decisions := map[string]func() error{
			"retry":   func() error { return out.Retry(ctx, id, ann) },
			"discard": func() error { return out.Discard(ctx, id, ann) },
			"reveal":  func() error { _, err := out.Reveal(ctx, id, ann); return err },
		}
		overtake := func(decide func() error, change string) error {
			p.db.Do(t, `UPDATE millrace_outbox SET status = ?`, rowParked)
			pool.Set(faults.Plan{Before: func(_ context.Context, call string) error {
				if call == faults.Begin {
					pool.Set(faults.Plan{})
					p.db.Do(t, change) //nolint:contextcheck // another one is deciding
				}
				return nil
			}})
			return decide()
		}
		for name, decide := range decisions {
			for status, state := range map[int]outbox.State{rowRetry: outbox.Retrying, rowSent: outbox.Sent} {
				err := overtake(decide, fmt.Sprintf(`UPDATE millrace_outbox SET status = %d`, status))
				require.ErrorIs(t, err, outbox.ErrWrongState, name)
				require.NotErrorIs(t, err, outbox.ErrNotFound, name)
				require.ErrorContains(t, err, "it is "+state.String()+", and only PARKED", name)
			}
		}
		for name, decide := range decisions {
			require.ErrorIs(t, overtake(decide, `UPDATE millrace_outbox SET id = id + 1`), outbox.ErrNotFound, name)
			p.db.Do(t, `UPDATE millrace_outbox SET id = id - 1`)
		}
		assert.Empty(t, p.audit(ctx))
	}},
	{Name: "a key held by an earlier relay", Why: "a restart forgets neither what is held nor what is released", Run: strictly(func(t *testing.T, p *post, b *strict) {
		keep, drop := b.letters("keep", 3), b.letters("drop", 3)
		b.refusing(refuses(outbox.Permanent(errRefused), keep[0].UUID, drop[0].UUID))
		relay := p.relayTo(b, holding)
		p.store("orders", append(keep, drop...)...)
		p.awaitParked(keep[0].UUID)
		parked := p.awaitParked(drop[0].UUID)
		p.awaitStatus(drop[2].UUID, rowHeld)
		p.awaitStatus(keep[2].UUID, rowHeld)
		require.NoError(t, relay.stop())

		b.excuse(drop[0])
		require.NoError(t, p.out.Discard(t.Context(), parked.ID, ann))
		kept, dropped := p.store("orders", b.letters("keep", 1)...), p.store("orders", b.letters("drop", 1)...)
		p.relayTo(b, holding)
		b.awaitAll(append(uuids(drop[1:]), dropped...))
		p.awaitStatus(kept[0], rowHeld)
		assert.Zero(t, b.counts()[keep[1].UUID])

		b.refusing(nil)
		require.NoError(t, p.out.Retry(t.Context(), p.awaitParked(keep[0].UUID).ID, ann))
		b.awaitAll(append(uuids(keep), kept...))
	})},
	{Name: "a parked message with a long UUID", Why: "whoever can store it can decide about it, too", Run: func(t *testing.T, db *testdb.DB) {
		ctx := t.Context()
		p, b := newPost(t, db), newStrict(t)
		msgs := b.letters("", 2)
		for i, msg := range msgs {
			msg.UUID = strings.Repeat("ü", 1000) + strconv.Itoa(i)
		}
		b.excuse(msgs[0])
		b.refusing(refuses(outbox.Permanent(errRefused), msgs[0].UUID, msgs[1].UUID))
		p.relayTo(b, holding)
		ids := p.store("orders", msgs...)
		first, last := p.awaitParked(ids[0]), p.awaitParked(ids[1])
		shown, err := p.out.Reveal(ctx, first.ID, ann)
		require.NoError(t, err)
		assert.Equal(t, ids[0], shown.Message.UUID)
		require.NoError(t, p.out.Discard(ctx, first.ID, ann))
		b.refusing(nil)
		require.NoError(t, p.out.Retry(ctx, last.ID, ann))
		b.awaitAll(ids[1:])
		lines := p.audit(ctx)
		require.Len(t, lines, 3)
		assert.Contains(t, lines[1], ids[0], "whole")
		assert.Contains(t, lines[2], ids[1], "whole")
	}},
	{Name: "parked by hand after a restore", Why: "docs/outbox.md says how", Run: strictly(func(t *testing.T, p *post, b *strict) {
		relay := p.relayTo(b, func(c *outbox.RelayConfig) { c.Retention = time.Hour })
		kept := p.store("orders", b.letters("", 1)...)[0]
		p.awaitStatus(kept, rowSent)
		require.NoError(t, relay.stop())
		unsent := b.letters("", 2)
		b.excuse(unsent...)
		p.store("orders", unsent...)
		p.db.Do(t, `UPDATE millrace_outbox SET status = ?, due_at = created_at + 3600000000 WHERE uuid = ?`, rowRetry, unsent[1].UUID)

		guide, err := os.ReadFile("../../docs/outbox.md")
		require.NoError(t, err)
		statement := regexp.MustCompile("`(UPDATE millrace_outbox SET status = 3[^`]*)…`").FindSubmatch(guide)
		require.NotNil(t, statement)
		p.db.Do(t, string(statement[1])+strconv.Itoa(math.MaxInt64))
		n, err := p.out.DiscardAll(t.Context(), "", ann, nil)
		require.NoError(t, err)
		assert.Equal(t, 2, n)
		assert.Equal(t, rowSent, p.row(kept).Status)
		assert.Equal(t, 1, p.rows())
	})},
}

func holding(c *outbox.RelayConfig) { c.MaxAttempts = 1 }

func continuing(c *outbox.RelayConfig) { c.MaxAttempts, c.OnParked = 1, outbox.Continue }

var ann = outbox.Operator{Name: "ann", Reason: "the queue exists now"}

func backlog(p *post) outbox.Backlog {
	p.Helper()
	all, err := p.out.Backlog(p.Context(), outbox.BacklogOptions{})
	require.NoError(p, err)
	return all
}

// audit reads what was written down.
func (p *post) audit(ctx context.Context) (lines []string) {
	p.Helper()
	rows, err := p.db.QueryContext(ctx, `SELECT actor, action, reason, message_id, detail FROM millrace_audit ORDER BY id`)
	require.NoError(p, err)
	defer func() { assert.NoError(p, rows.Close()) }()
	for rows.Next() {
		var operator, action, reason, id, detail []byte
		require.NoError(p, rows.Scan(&operator, &action, &reason, &id, &detail))
		lines = append(lines, string(slices.Concat(operator, []byte("|"), action, []byte("|"), reason,
			[]byte("|"), id, []byte("|"), detail)))
	}
	require.NoError(p, rows.Err())
	return lines
}
