package inboxlint

import (
	"go/ast"
	"go/types"
	"strings"
)

var publishAnalyzer = newAnalyzer("inboxpublish",
	"find messages that a handler publishes past the outbox\n\n"+
		"Such a message is out before the transaction is committed, even if it never is, and goes out again in each run.\n"+
		"Reported are publishers of which the package shows that they are a broker's: of watermill's modules, or pubsub/rabbitmq.",
	"pitfalls.md#publishing-before-the-commit", checkPublish)

func checkPublish(f *findings) {
	for _, call := range f.handled(f.handlers) {
		receiver := f.receiver(call)
		if receiver == nil {
			continue
		}
		switch name := f.called(call); {
		case strings.HasSuffix(name, ".Publish") && f.isBroker(receiver),
			buses[name] && all(f.valuesOf(receiver), f.isBusOfBroker):
			f.add(call, "published past the outbox in a handler: the message is out before the commit, and again in each run; return it, or publish it through the outbox")
		}
	}
}

var (
	buses    = union(methods(cqrs+".EventBus", "Publish"), methods(cqrs+".CommandBus", "Send", "SendWithModifiedMessage"))
	newBuses = set(cqrs+".NewEventBus", cqrs+".NewEventBusWithConfig", cqrs+".NewCommandBus", cqrs+".NewCommandBusWithConfig")
)

// isBroker reports whether e is certainly a publisher of a broker.
func (s *service) isBroker(e ast.Expr) bool {
	t := s.info.TypeOf(e)
	if t == nil {
		return false
	}
	if !types.IsInterface(t) {
		return brokers(t)
	}
	return all(s.valuesOf(e), func(v value) bool { return brokers(s.typeOf(v)) })
}

func (s *service) isBusOfBroker(v value) bool {
	call, ok := v.expr.(*ast.CallExpr)
	return ok && newBuses[s.called(call)] && len(call.Args) > 0 && s.isBroker(call.Args[0])
}

// brokers reports whether a type is a publisher of a broker. Those of watermill-sql and watermill-sqlite can be in the transaction.
func brokers(t types.Type) bool {
	name := typeName(t)
	switch {
	case name == watermill+"/pubsub/gochannel.GoChannel", name == root+"/pubsub/rabbitmq.Publisher":
		return true
	case strings.HasPrefix(name, watermill+"-sql"):
		return false
	}
	return strings.HasPrefix(name, watermill+"-") && strings.HasSuffix(name, ".Publisher")
}
