// Package order has routers whose middlewares stand in the wrong order.
package order

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
)

func inside(router *message.Router, store *inbox.Store, pub message.Publisher) error {
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddMiddleware(middleware.CorrelationID, middleware.Retry{MaxRetries: 3}.Middleware) // want `Retry is inside of Inbox.*router.md#order`
	poison, err := middleware.PoisonQueue(pub, "poison")
	if err != nil {
		return err
	}
	router.AddMiddleware(poison) // want `PoisonQueue is inside`
	ignore := middleware.NewIgnoreErrors(nil)
	router.AddMiddleware(ignore.Middleware, middleware.InstantAck) // want `IgnoreErrors is inside` `InstantAck beside Inbox`
	return nil
}

func twice(router *message.Router, store *inbox.Store) {
	router.AddMiddleware((&middleware.Deduplicator{}).Middleware) // want `Deduplicator beside Inbox`
	router.AddMiddleware(middleware.Duplicator)                   // outside
	millrace.Inbox{Store: store}.AddTo(router)
	router.AddMiddleware(middleware.Duplicator) // want `Duplicator is inside of Inbox.*refused`
}

func oneCall(router *message.Router, in millrace.Inbox) {
	router.AddMiddleware(in.Middleware, middleware.Retry{}.Middleware) // want `Retry is inside`
}

func inboxOf(store *inbox.Store) message.HandlerMiddleware {
	return millrace.Inbox{Store: store}.Middleware
}

func returned(router *message.Router, store *inbox.Store) {
	router.AddMiddleware(inboxOf(store))
	router.AddMiddleware(middleware.Retry{}.Middleware) // want `Retry is inside`
}

func outside(router *message.Router, store *inbox.Store) {
	retry := middleware.Retry{MaxRetries: 3}
	router.AddMiddleware(retry.Middleware, middleware.Recoverer)
	millrace.Inbox{Store: store}.AddTo(router)
}

func ofOneHandler(router *message.Router, store *inbox.Store, sub message.Subscriber, h message.NoPublishHandlerFunc) {
	a := router.AddConsumerHandler("a", "b", sub, h)
	b := router.AddConsumerHandler("c", "d", sub, h)
	a.AddMiddleware(middleware.Retry{}.Middleware) // before
	millrace.Inbox{Store: store}.AddTo(router)
	b.AddMiddleware(middleware.Retry{}.Middleware) // want `Retry is inside`
}

func ofTwoHandlers(router, other *message.Router, store *inbox.Store, sub message.Subscriber, h message.NoPublishHandlerFunc) {
	a := router.AddConsumerHandler("a", "b", sub, h)
	b := router.AddConsumerHandler("c", "d", sub, h)
	a.AddMiddleware(millrace.Inbox{Store: store}.Middleware)
	b.AddMiddleware(middleware.Retry{}.Middleware) // b has no inbox
	other.AddMiddleware(middleware.Retry{}.Middleware)
}

func either(router *message.Router, store *inbox.Store, on bool) {
	if on {
		millrace.Inbox{Store: store}.AddTo(router)
	} else {
		router.AddMiddleware(middleware.Retry{}.Middleware)
	}
}

func oneCase(router *message.Router, store *inbox.Store, on bool) {
	switch on {
	case true:
		millrace.Inbox{Store: store}.AddTo(router)
	default:
		router.AddMiddleware(middleware.Retry{}.Middleware)
	}
}

func orReturns(router *message.Router, store *inbox.Store, on bool) {
	if on {
		millrace.Inbox{Store: store}.AddTo(router)
		return
	}
	router.AddMiddleware(middleware.Retry{}.Middleware)
}

func ifOn(router *message.Router, store *inbox.Store, on bool) {
	if on {
		millrace.Inbox{Store: store}.AddTo(router)
	}
	router.AddMiddleware(middleware.Retry{}.Middleware) // want `Retry is inside`
}

func two(store *inbox.Store) {
	router := message.NewDefaultRouter(nil)
	millrace.Inbox{Store: store}.AddTo(router)
	router = message.NewDefaultRouter(nil)
	router.AddMiddleware(middleware.Retry{}.Middleware)
}

type service struct{ router, other *message.Router }

func (s *service) fields(store *inbox.Store) {
	millrace.Inbox{Store: store}.AddTo(s.router)
	s.router.AddMiddleware(middleware.Retry{}.Middleware) // want `Retry is inside`
	s.other.AddMiddleware(middleware.Retry{}.Middleware)
}

func nested(in millrace.Inbox, h message.HandlerFunc) message.HandlerFunc {
	retry := middleware.Retry{}
	_ = retry.Middleware(in.Middleware(h))
	return in.Middleware(middleware.Recoverer(retry.Middleware(h))) // want `Retry is inside`
}
