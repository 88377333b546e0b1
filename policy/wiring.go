package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/middleware/shadow"
	"github.com/millrace-go/millrace/pubsub"
)

// Wiring is what a policy names and cannot bring along. Store suffices for most services, and
// Outbox for those that send messages.
type Wiring struct {
	// Store is the one without a name, Stores are those that Rules.Store names.
	Store  *inbox.Store
	Stores map[string]*inbox.Store

	// Outbox is given the messages that handlers return, in the transaction of Store; Outboxes
	// are those of Stores, by the same names. Intent needs one, the other strategies with a
	// transaction use it where there is one.
	Outbox   message.Publisher
	Outboxes map[string]message.Publisher

	// Leases is the memory of strategy dedup where Rules.Store names none. Defaults to the leases
	// of Store.
	Leases *inbox.Leases

	// Keys are what func:NAME stands for in Key.From and OrderKey.
	Keys map[string]inbox.Key

	// Versions are what func:NAME stands for in Version.From.
	Versions map[string]inbox.VersionFunc

	// Before has, by handler, what is Inbox.Before: what is done before the handler's transaction
	// begins, such as steps with inbox.Once. For strategies inbox, durable and intent.
	Before map[string]func(msg *message.Message) error

	// Inbox, Gate, Deduplicate and Durable give what a policy has no words for, such as
	// Inbox.OnBegin or Durable.Concurrency. What it has words for is taken from the policy
	// alone, also where it says nothing.
	Inbox       millrace.Inbox
	Gate        millrace.VersionGate
	Deduplicate millrace.Deduplicate
	Durable     pubsub.Durable

	// Shadow is what rules with Shadow try besides their own key and version, and who is told.
	Shadow shadow.Config

	// Absent names consumers of the policy that the router may lack when it starts: handlers
	// that are added while it runs, and those of other routers.
	Absent []string
}

// store returns the store of r.
func (w *Wiring) store(r Rules) (*inbox.Store, error) {
	if r.Store == "" {
		if w.Store == nil {
			return nil, lack{"store", fmt.Sprintf("strategy %s needs a store: set Wiring.Store, or name one of Wiring.Stores", r.Strategy)}
		}
		return w.Store, nil
	}
	return named("store", "Stores", w.Stores)(r.Store)
}

// outbox returns the outbox of r, nil if there is none.
func (w *Wiring) outbox(r Rules) (message.Publisher, error) {
	out, where := w.Outbox, "Outbox"
	if r.Store != "" {
		out, where = w.Outboxes[r.Store], fmt.Sprintf("Outboxes[%q]", r.Store)
	}
	if out == nil && r.Strategy == Intent {
		return nil, lack{"strategy", "intent needs an outbox: set Wiring." + where}
	}
	return out, nil
}

func (w *Wiring) key(r Rules) (inbox.Key, error) {
	return r.Key.inboxKey(named("key.from", "Keys", w.Keys))
}

// formerKey is none where the rules say nothing.
func (w *Wiring) formerKey(r Rules) (inbox.Key, error) {
	if r.FormerKey == (Key{}) {
		return inbox.Key{}, nil
	}
	return r.FormerKey.inboxKey(named("former_key.from", "Keys", w.Keys))
}

func (w *Wiring) orderKey(r Rules) (func(*message.Message) (string, error), error) {
	if r.OrderKey == "" {
		return nil, nil
	}
	key, err := parseKey(r.OrderKey, named("order_key", "Keys", w.Keys))
	return key.Of, err
}

func (w *Wiring) version(r Rules) (inbox.VersionFunc, error) {
	return r.Version.inboxVersion(named("version.from", "Versions", w.Versions))
}

// before returns what is done before the transactions of handler.
func (w *Wiring) before(handler string, r Rules) (func(*message.Message) error, error) {
	before := w.Before[handler]
	if before == nil && r.SideEffects == OnceSteps {
		return nil, lack{"side_effects", fmt.Sprintf("strategy %s has a transaction, which a step would hold: "+
			"do the steps in Wiring.Before[%q], or take strategy dedup", r.Strategy, handler)}
	}
	return before, nil
}

// named looks names up that a field of the policy says.
func named[T any](field, where string, all map[string]T) func(name string) (T, error) {
	return func(name string) (T, error) {
		one, ok := all[name]
		if ok {
			return one, nil
		}
		if len(all) == 0 {
			return one, lack{field, fmt.Sprintf("%q is to be in Wiring.%s, which is empty", name, where)}
		}
		known := slices.Sorted(maps.Keys(all))
		return one, lack{field, fmt.Sprintf("%q is none of Wiring.%s: %s%s", name, where, strings.Join(known, ", "), didYouMean(name, known))}
	}
}

// lack is what the wiring lacks for a field of the policy.
type lack struct{ field, text string }

func (l lack) Error() string { return l.field + ": " + l.text }
