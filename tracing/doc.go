// Package tracing puts what happens to a message into one OpenTelemetry trace: from the
// request that caused it through the outbox, the relay, the broker and the inbox to the
// handler, with each decision of the inbox and the relay, and why it was made.
//
//	tracer := tracing.New(tracing.Config{})
//
//	store, err := inbox.NewStore(db, inbox.Config{Observers: []inbox.Observer{tracer.InboxObserver()}})
//	out, err := outbox.NewPublisher(db, outbox.Config{})
//	relay, err := outbox.NewRelay(db, tracer.Sender(broker), outbox.RelayConfig{
//		Observers: []outbox.Observer{tracer.RelayObserver()},
//	})
//	router.AddMiddleware(
//		tracer.Middleware, // first
//		millrace.Inbox{Store: store, Outbox: tracer.Publisher(out)}.Middleware,
//	)
//
// # How spans belong together
//
// [Tracer.Publisher] makes the span "create" of each message and puts its context into the
// metadata, as W3C trace context and baggage, from where it gets into the outbox's row and to the
// broker. Nothing changes it on the way: the "send" of each attempt of a relay and the "process" of
// each delivery, duplicates too, are children of "create". Spans and attributes follow the semantic
// conventions for messaging; of a payload they tell its size.
//
// # What it costs
//
// Attributes are made only for spans that are recorded. Without a TracerProvider a delivery costs
// two or three small allocations, and a decision none.
package tracing
