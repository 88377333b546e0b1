package tests_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
	"github.com/millrace-go/millrace/tracing"
)

// bed is a service that is traced.
type bed struct {
	*testing.T
	*tracing.Tracer
	db      *testdb.DB
	store   *inbox.Store
	kept    *tracetest.InMemoryExporter
	service trace.Tracer
}

func newBed(t *testing.T, db *testdb.DB) *bed {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(kept))
	b := &bed{T: t, db: db, kept: kept, service: provider.Tracer("shop")}
	b.Tracer = tracing.New(tracing.Config{TracerProvider: provider, System: "rabbitmq"})
	b.store = rig.NewStore(t, db.DB, inbox.Config{
		Observers: []inbox.Observer{b.InboxObserver()}, PurgeInterval: 100 * time.Millisecond,
	})
	require.NoError(t, b.store.Migrate(t.Context()))
	db.Do(t, `CREATE TABLE effects (uuid VARCHAR(60) NOT NULL)`)
	return b
}

// effect is a handler's work, in its transaction.
func effect(msg *message.Message) error {
	return rig.Exec(msg.Context(), `INSERT INTO effects (uuid) VALUES (?)`, msg.UUID)
}

func (b *bed) router(middlewares ...message.HandlerMiddleware) *message.Router {
	b.Helper()
	router := rig.NewRouter(b)
	router.AddPlugin(b.store.Plugin())
	router.AddMiddleware(b.Middleware)
	router.AddMiddleware(middlewares...)
	return router
}

func (b *bed) run(router *message.Router) {
	b.Helper()
	stopped := rig.Run(b, router)
	b.Cleanup(func() {
		assert.NoError(b, router.Close())
		assert.NoError(b, <-stopped)
		assert.NoError(b, b.store.Close(context.WithoutCancel(b.Context())))
	})
}

// spans waits until n spans have ended.
func (b *bed) spans(n int) {
	b.Helper()
	enough := func() bool { return len(b.kept.GetSpans()) >= n }
	if !assert.Eventually(b, enough, rig.Patience, 5*time.Millisecond) {
		require.Fail(b, "spans are missing", b.tree())
	}
}

// all returns the spans of a name, in the order of their beginnings.
func (b *bed) all(name string) (found tracetest.SpanStubs) {
	for _, s := range b.kept.GetSpans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(x, y tracetest.SpanStub) int { return x.StartTime.Compare(y.StartTime) })
	return found
}

func (b *bed) isChild(child, parent tracetest.SpanStub) {
	b.Helper()
	assert.Equal(b, parent.SpanContext.TraceID(), child.SpanContext.TraceID(), "%s is in another trace than %s", child.Name, parent.Name)
	assert.Equal(b, parent.SpanContext.SpanID(), child.Parent.SpanID(), "%s is no child of %s", child.Name, parent.Name)
}

// tree draws all spans, each below its parent, with their kinds and events.
func (b *bed) tree() string {
	var text strings.Builder
	b.draw(&text, trace.SpanID{}, 0)
	return text.String()
}

func (b *bed) draw(text *strings.Builder, parent trace.SpanID, depth int) {
	spans := b.kept.GetSpans()
	slices.SortStableFunc(spans, func(x, y tracetest.SpanStub) int { return x.StartTime.Compare(y.StartTime) })
	for _, s := range spans {
		if s.Parent.SpanID() != parent {
			continue
		}
		line := strings.Repeat("    ", depth) + s.Name
		fmt.Fprintf(text, "%-36s %s%s\n", line, s.SpanKind, events(s))
		b.draw(text, s.SpanContext.SpanID(), depth+1)
	}
}

func events(s tracetest.SpanStub) (text string) {
	if s.Status.Code == codes.Error {
		text = "  failed"
	}
	for _, e := range s.Events {
		text += "  " + e.Name + ": " + attributes(e.Attributes)["millrace.reason"]
	}
	return text
}

func attributes(list []attribute.KeyValue) map[string]string {
	all := make(map[string]string, len(list))
	for _, kv := range list {
		all[string(kv.Key)] = kv.Value.String()
	}
	return all
}
