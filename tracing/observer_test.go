package tracing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tracing"
)

func duplicate(ctx context.Context, o inbox.Observer, e inbox.Event) {
	e.Kind = inbox.KindDuplicate
	o.Observe(ctx, e)
}

func TestInboxObserverAddsToTheSpanOfTheDelivery(t *testing.T) {
	b := newBed(t)
	ctx, span := b.spans.Start(t.Context(), "process")
	duplicate(ctx, b.InboxObserver(), inbox.Event{
		Consumer: "billing", Epoch: 2, MessageID: "7", UUID: "u", Topic: "orders", Type: "paid", Reason: "settled", Count: 3, Attempt: 4,
		Err: errors.New("boom"),
	})
	span.End()
	process := b.one("process")
	require.Len(t, process.Events, 1)
	assert.Equal(t, "duplicate", process.Events[0].Name)
	assert.Equal(t, map[string]string{
		"millrace.consumer": "billing", "millrace.epoch": "2", "millrace.message_id": "7", "millrace.event_type": "paid",
		"millrace.reason": "settled", "millrace.count": "3", "millrace.attempt": "4", "millrace.error": "boom",
	}, attributes(process.Events[0].Attributes))
}

func TestInboxObserverAddsASpanAfterTheDelivery(t *testing.T) {
	b := newBed(t)
	ctx, span := b.spans.Start(t.Context(), "process")
	span.End()
	b.InboxObserver().Observe(ctx, inbox.Event{Kind: inbox.KindSettled, Topic: "orders", Reason: "acked"})
	settled := b.one("settled orders")
	b.isChild(settled, b.one("process"))
	assert.Equal(t, "acked", attributes(settled.Attributes)["millrace.reason"])
}

func TestInboxObserverFindsTheTraceWithoutADelivery(t *testing.T) {
	b := newBed(t)
	msg, create := b.made()
	b.InboxObserver().Observe(t.Context(), inbox.Event{
		Kind: inbox.KindParked, Topic: "orders", Reason: "failed 10 times", Err: errors.New("boom"), Metadata: msg.Metadata,
	})
	parked := b.one("parked orders")
	b.isChild(parked, create)
	assert.Equal(t, sdktrace.Status{Code: codes.Error, Description: "boom"}, parked.Status)

	b.kept.Reset()
	b.InboxObserver().Observe(t.Context(), inbox.Event{Kind: inbox.KindPurged, Reason: "retention"})
	assert.Empty(t, b.kept.GetSpans(), "it belongs to no message")
}

func TestRelayObserverAddsToTheTraceOfTheMessage(t *testing.T) {
	b := newBed(t)
	msg, create := b.made()
	e := outbox.Event{Topic: "orders", UUID: "1", Reason: "attempt failed", Attempts: 3, Err: errors.New("boom"), Metadata: msg.Metadata}
	for _, e.Kind = range []outbox.Kind{outbox.KindAttempt, outbox.KindParked, outbox.KindOutage} {
		b.RelayObserver().Observe(t.Context(), e)
	}
	for _, name := range []string{"attempt orders", "parked orders", "outage orders"} {
		span := b.one(name)
		b.isChild(span, create)
		assert.Equal(t, codes.Error, span.Status.Code)
		assert.Equal(t, map[string]string{
			"messaging.message.id": "1", "millrace.reason": "attempt failed", "millrace.attempt": "3", "millrace.error": "boom",
		}, attributes(span.Attributes))
	}
	b.kept.Reset()
	b.RelayObserver().Observe(t.Context(), outbox.Event{Kind: outbox.KindOutage, Reason: "over"})
	assert.Empty(t, b.kept.GetSpans())
}

func TestObserversCostNothingWhereNothingIsRecorded(t *testing.T) {
	b := newBed(t)
	carries, _ := b.made()
	plain := newMessage("2")
	unsampled := newBed(t, sdktrace.WithSampler(sdktrace.NeverSample()))
	silent := &bed{T: t, Tracer: tracing.New(tracing.Config{TracerProvider: noop.NewTracerProvider()})}
	for name, c := range map[string]struct {
		*bed
		msg *message.Message
	}{
		"no provider":                         {silent, plain},
		"no provider, and a context to carry": {silent, carries},
		"not sampled":                         {unsampled, plain},
	} {
		t.Run(name, func(t *testing.T) {
			observer, e := c.InboxObserver(), inbox.Event{Reason: "settled", Metadata: c.msg.Metadata, Err: errors.New("boom")}
			var allocs float64
			_, err := c.Middleware(func(m *message.Message) ([]*message.Message, error) {
				ctx := m.Context()
				if name == "no provider" {
					ctx = t.Context()
				}
				allocs = testing.AllocsPerRun(1000, func() { duplicate(ctx, observer, e) })
				return nil, nil
			})(c.msg)
			require.NoError(t, err)
			assert.Zero(t, allocs)
		})
	}
	assert.Empty(t, unsampled.kept.GetSpans())
}

// TestObserversHearEverything finds a kind of event that was forgotten here.
func TestObserversHearEverything(t *testing.T) {
	b := newBed(t)
	// The span itself says that a message was received, and claims are about no message.
	assert.Equal(t, []string{"received", "claims"}, unheard(b.InboxObserver().(inbox.SelectiveObserver)))
	aboutNoMessage := []string{"published", "shards", "purged"}
	assert.Equal(t, aboutNoMessage, unheard(b.RelayObserver().(outbox.SelectiveObserver)))
}

// unheard returns the kinds that o does not want.
func unheard[K interface {
	~uint8
	fmt.Stringer
}](o interface{ Wants(k K) bool }) (kinds []string) {
	for k := K(1); !strings.HasPrefix(k.String(), "Kind("); k++ {
		if !o.Wants(k) {
			kinds = append(kinds, k.String())
		}
	}
	return kinds
}
