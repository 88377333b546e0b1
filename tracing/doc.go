// Package tracing records the way of a message in one OpenTelemetry trace: from the request that
// caused it through the outbox, the relay, the broker and the inbox to the handler. The spans carry
// each decision of the inbox and the relay as an event, with its reason.
//
//	tracer := tracing.New(tracing.Config{})
//
//	store, err := inbox.NewStore(db, inbox.Config{Observers: []inbox.Observer{tracer.InboxObserver()}})
//	out, err := outbox.NewPublisher(db, outbox.Config{})
//	relay, err := outbox.NewRelay(db, tracer.Sender(broker), outbox.RelayConfig{
//		Observers: []outbox.Observer{tracer.RelayObserver()},
//	})
//	router.AddMiddleware(
//		tracer.Middleware, // outside everything else
//		millrace.Inbox{Store: store, Outbox: tracer.Publisher(out)}.Middleware,
//	)
//
// # Spans
//
// [Tracer.Publisher] starts a span "create" for each message and writes the span's context into the
// metadata, as W3C trace context and baggage. The outbox stores the metadata, and the relay sends it
// to the broker unchanged. So the "send" of each attempt of a relay ([Tracer.Sender]) and the "process"
// of each delivery ([Tracer.Middleware]), duplicates included, are children of "create". Spans and
// attributes follow OpenTelemetry's semantic conventions for messaging. They contain the size of a
// payload, but not the payload.
//
// # Cost
//
// Attributes are computed only for recorded spans. Without a TracerProvider, a delivery costs two or
// three small allocations and a decision none.
package tracing
