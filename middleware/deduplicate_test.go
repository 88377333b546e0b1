package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/lease"
	millrace "github.com/millrace-go/millrace/middleware"
)

func memoryLeases() *inbox.Leases { return inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{}) }

// wrapped counts the runs of a handler behind d.
func wrapped(d millrace.Deduplicate) (h message.HandlerFunc, runs *int) {
	runs = new(int)
	return d.Middleware(func(*message.Message) ([]*message.Message, error) { *runs++; return nil, nil }), runs
}

func TestDeduplicateReportsWrongSettingsOnEveryMessage(t *testing.T) {
	log := watermill.NewCaptureLogger()
	d := millrace.Deduplicate{
		Claims: inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{Logger: log}), Consumer: strings.Repeat("n", 300),
		Epoch: -1, Lease: time.Second / 50, Wait: -1, Retention: 60, OnReplay: inbox.ReplaySuppress,
	}
	h, runs := wrapped(d)
	for range 2 {
		_, err := h(message.NewMessage("a", nil))
		for _, part := range []string{"Consumer", "Epoch", "Lease", "Wait", "Retention", "OnReplay"} {
			require.ErrorContains(t, err, part)
		}
	}
	require.Zero(t, *runs)
	require.Len(t, log.Captured()[watermill.ErrorLogLevel], 1)

	require.ErrorContains(t, millrace.Deduplicate{}.Validate(), "Claims is required")
	nowhere := millrace.Deduplicate{Claims: inbox.NewLeases(nil, inbox.LeasesConfig{})}
	require.ErrorContains(t, nowhere.Validate(), "no store")
	h, runs = wrapped(millrace.Deduplicate{})
	_, err := h(message.NewMessage("a", nil))
	require.ErrorContains(t, err, "Claims is required")
	require.Zero(t, *runs)
	h, runs = wrapped(millrace.Deduplicate{
		Claims: inbox.NewLeases(&lease.Memory{Limit: -1}, inbox.LeasesConfig{}), Consumer: "mailer",
	})
	_, err = h(message.NewMessage("a", nil))
	require.ErrorContains(t, err, "Limit")
	require.Zero(t, *runs)
}

func TestDeduplicateNeedsAConsumer(t *testing.T) {
	h, runs := wrapped(millrace.Deduplicate{Claims: memoryLeases()})
	_, err := h(message.NewMessage("a", nil))
	require.ErrorContains(t, err, "set Consumer")
	require.Zero(t, *runs)
}

func TestDeduplicateSkips(t *testing.T) {
	h, runs := wrapped(millrace.Deduplicate{
		Claims: memoryLeases(), Consumer: "mailer",
		Skip: func(msg *message.Message) bool { return msg.UUID == "a" },
	})
	for _, id := range []string{"a", "a", "b", "b"} {
		_, err := h(message.NewMessage(id, nil))
		require.NoError(t, err)
	}
	require.Equal(t, 3, *runs)
}

func TestDeduplicateRestoresTheContext(t *testing.T) {
	var inside context.Context
	d := millrace.Deduplicate{Claims: memoryLeases(), Consumer: "mailer"}
	h := d.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		inside = msg.Context()
		ended, cancel := context.WithCancel(inside)
		cancel()
		msg.SetContext(ended) // what Watermill's Timeout leaves behind
		return nil, nil
	})
	msg := message.NewMessage("a", nil)
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, 1)
	msg.SetContext(ctx)
	_, err := h(msg)
	require.NoError(t, err)
	require.Equal(t, ctx, msg.Context())
	require.Equal(t, 1, inside.Value(key{}))
}

func TestDeduplicateTwiceOnAHandlerIsRefused(t *testing.T) {
	d := millrace.Deduplicate{Claims: memoryLeases(), Consumer: "mailer"}
	h, runs := wrapped(d)
	_, err := d.Middleware(h)(message.NewMessage("a", nil))
	require.ErrorContains(t, err, "stands twice")
	require.Zero(t, *runs)
}

// twoHandlers delivers copies of a message to a router whose two handlers share mw.
func twoHandlers(t *testing.T, mw message.HandlerMiddleware) (runs [2]int64) {
	t.Helper()
	bus := gochannel.NewGoChannel(gochannel.Config{BlockPublishUntilSubscriberAck: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(mw)
	var mailer, pusher atomic.Int64
	router.AddConsumerHandler("mailer", "orders", bus, func(*message.Message) error { mailer.Add(1); return nil })
	router.AddConsumerHandler("pusher", "orders", bus, func(*message.Message) error { pusher.Add(1); return nil })
	go func() { _ = router.Run(context.WithoutCancel(t.Context())) }()
	<-router.Running()
	for range 2 {
		require.NoError(t, bus.Publish("orders", message.NewMessage("a", nil)))
	}
	require.NoError(t, router.Close())
	return [2]int64{mailer.Load(), pusher.Load()}
}

func TestDeduplicateKeepsHandlersApart(t *testing.T) {
	seen, err := middleware.NewMapExpiringKeyRepository(time.Minute)
	require.NoError(t, err)
	theirs := &middleware.Deduplicator{ // whole: two handlers would race to set its defaults
		KeyFactory: middleware.NewMessageHasherSHA256(1 << 20), Repository: seen, Timeout: time.Minute,
	}
	runs := twoHandlers(t, theirs.Middleware)
	require.EqualValues(t, 1, runs[0]+runs[1], "Watermill's Deduplicator drops the message for one of two handlers")

	claims := memoryLeases()
	require.Equal(t, [2]int64{1, 1}, twoHandlers(t, millrace.Deduplicate{Claims: claims}.Middleware))
}

func TestDeduplicateRefusesASecondHandlerOfAConsumer(t *testing.T) {
	claims := memoryLeases()
	config := inbox.LeaseConfig{Name: "mailer", Handler: "mail"}
	_, err := claims.Handler(config, nil)
	require.NoError(t, err)
	_, err = claims.Handler(config, nil)
	require.NoError(t, err, "a handler that was stopped and started again")
	config.Handler = "push"
	_, err = claims.Handler(config, nil)
	require.ErrorContains(t, err, "two handlers")
	config.Handler, config.Key = "mail", inbox.ByPayload()
	_, err = claims.Handler(config, nil)
	require.ErrorIs(t, err, inbox.ErrKeyChanged)
}

// failFirst delivers a message until it is acked, to a handler that fails the first time.
func failFirst(mw message.HandlerMiddleware) (successes int) {
	calls := 0
	h := mw(func(*message.Message) ([]*message.Message, error) {
		if calls++; calls == 1 {
			return nil, errors.New("mail server down")
		}
		successes++
		return nil, nil
	})
	for {
		if _, err := h(message.NewMessage("a", []byte("x"))); err == nil {
			return successes
		}
	}
}

func TestDeduplicateDoesNotLoseAFailedMessage(t *testing.T) {
	require.Zero(t, failFirst((&middleware.Deduplicator{}).Middleware), "Watermill's Deduplicator loses it")
	claims := memoryLeases()
	require.Equal(t, 1, failFirst(millrace.Deduplicate{Claims: claims, Consumer: "mailer"}.Middleware))
}

// distinct delivers n messages, all different, and counts those that are handled.
func distinct(t *testing.T, n int, mw message.HandlerMiddleware) (handled int) {
	t.Helper()
	h := mw(func(*message.Message) ([]*message.Message, error) { handled++; return nil, nil })
	for i := range n {
		_, err := h(message.NewMessage(strconv.Itoa(i), fmt.Appendf(nil, `{"order_id":%d,"status":"paid"}`, i)))
		require.NoError(t, err)
	}
	return handled
}

func TestDeduplicateTellsPayloadsApart(t *testing.T) {
	const n = 20_000
	require.Less(t, distinct(t, n, (&middleware.Deduplicator{}).Middleware), n/5,
		"Watermill's Deduplicator takes most payloads for others with the same Adler-32")
	for name, key := range map[string]inbox.Key{"uuid": inbox.ByUUID(), "payload": inbox.ByPayload()} {
		d := millrace.Deduplicate{
			Claims: memoryLeases(), Consumer: "mailer", Key: key,
		}
		require.Equal(t, n, distinct(t, n, d.Middleware), name)
	}
}

func TestDeduplicateLosesNoneOfMoreThanItRemembers(t *testing.T) {
	const n = 30_000
	d := millrace.Deduplicate{Claims: inbox.NewLeases(&lease.Memory{Limit: n * 5 / 6}, inbox.LeasesConfig{}), Consumer: "mailer"}
	require.Equal(t, n, distinct(t, n, d.Middleware))
}

func TestDeduplicateTellsTheHandlerOfAReplay(t *testing.T) {
	var told replays
	var asked []bool
	last := t.Context()
	h := millrace.Deduplicate{
		Claims: inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{Observers: []inbox.Observer{inbox.On(told.observe, inbox.KindReplayed)}}), Consumer: "mails",
	}.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		asked = append(asked, inbox.IsReplay(msg.Context())) //nolint:contextcheck // the message's own
		last = msg.Context()
		return nil, nil
	})
	for _, uuid := range []string{"a", "b", "b", "made of b"} {
		msg := message.NewMessage(uuid, nil)
		msg.SetContext(context.WithoutCancel(last)) // as a channel of this process may carry it on
		if uuid == "b" {
			msg.Metadata.Set(inbox.ReplayField, "of May")
		}
		_, err := h(msg)
		require.NoError(t, err)
	}
	require.Equal(t, []bool{false, true, false}, asked)
	require.Equal(t, replays{"b ran, of May", "b duplicate, of May"}, told)
}

type replays []string

func (r *replays) observe(_ context.Context, e inbox.Event) {
	*r = append(*r, e.MessageID+" "+e.Reason+", "+e.Replay)
}

func TestDeduplicateRefusesReplays(t *testing.T) {
	var told replays
	h, runs := wrapped(millrace.Deduplicate{
		Claims:   inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{Observers: []inbox.Observer{inbox.On(told.observe, inbox.KindReplayed)}}),
		Consumer: "mails", OnReplay: inbox.ReplayRefuse,
	})
	deliver := func(uuid, replay string) {
		msg := message.NewMessage(uuid, nil)
		if replay != "" {
			msg.Metadata.Set(inbox.ReplayField, replay)
		}
		_, err := h(msg)
		require.NoError(t, err)
	}
	deliver("a", "of May")
	require.Zero(t, *runs)
	require.Equal(t, replays{"a refused, of May"}, told)
	deliver("a", "")
	require.Equal(t, 1, *runs, "what was refused is not remembered")
	deliver("a", "of June")
	require.Equal(t, 1, *runs)
}

// Duplicator outside: while its key is kept for the ack, a message runs no second time, as docs/router.md says.
func TestDeduplicateInsideOfDuplicator(t *testing.T) {
	for _, produced := range [][]*message.Message{nil, {message.NewMessage("out", nil)}} {
		synctest.Test(t, func(t *testing.T) {
			runs := 0
			h := middleware.Duplicator(millrace.Deduplicate{Claims: memoryLeases(), Consumer: "mailer"}.Middleware(
				func(*message.Message) ([]*message.Message, error) { runs++; return produced, nil }))
			msg := message.NewMessage("a", nil)
			_, err := h(msg)
			if produced == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, inbox.ErrInProgress)
			}
			require.Equal(t, 1, runs)
			msg.Nack()
		})
	}
}
