package policy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/middleware/shadow"
	"github.com/millrace-go/millrace/pubsub"
)

// Wiring holds the values that a policy names but cannot contain. Most services set only Store, and
// Outbox if they send messages. Wire refuses maps with a nil value, or with a zero Key.
type Wiring struct {
	// Store is the default store. Stores are those that Rules.Store names.
	Store  *inbox.Store
	Stores map[string]*inbox.Store

	// Outbox stores the messages that handlers return, in the transaction of Store. Outboxes do so
	// for Stores, under the same names. Strategy intent requires an outbox; the other strategies
	// with a transaction use it if there is one.
	Outbox   message.Publisher
	Outboxes map[string]message.Publisher

	// Leases are the leases of strategy dedup if Rules.Store names no store. Defaults to the leases
	// of Store.
	Leases *inbox.Leases

	// Keys are the functions that func:NAME in Key.From and OrderKey names.
	Keys map[string]inbox.Key

	// Versions are the functions that func:NAME in Version.From names.
	Versions map[string]inbox.VersionFunc

	// Before holds Inbox.Before for each handler that needs it: work that comes before the
	// handler's transaction, such as steps with inbox.Once. It is for strategies inbox, durable and
	// intent.
	Before map[string]func(msg *message.Message) error

	// Inbox, Gate, Deduplicate and Durable supply settings that a policy cannot express, such as
	// Inbox.OnBegin or Durable.Concurrency. A setting that a policy can express comes from the
	// policy alone, even if the policy leaves it out.
	Inbox       millrace.Inbox
	Gate        millrace.VersionGate
	Deduplicate millrace.Deduplicate
	Durable     pubsub.Durable

	// Shadow says what rules with Shadow try besides their own key and version, and who is told.
	Shadow shadow.Config

	// Absent names consumers of the policy that the router need not have when it starts: handlers
	// that are added later, and those of other routers.
	Absent []string
}

// empty returns the entries of the maps that hold nothing: a default would take their place.
func (w *Wiring) empty() (all Problems) {
	all = append(all, nils("Stores", w.Stores)...)
	all = append(all, nils("Outboxes", w.Outboxes)...)
	all = append(all, nils("Versions", w.Versions)...)
	all = append(all, nils("Before", w.Before)...)
	for name, key := range w.Keys {
		if reflect.ValueOf(key).IsZero() {
			all = append(all, Problem{Text: fmt.Sprintf("Wiring.Keys[%q] is the zero Key: write inbox.ByUUID() if the UUID is meant", name)})
		}
	}
	return all
}

// nils returns the entries of a map that are nil, or a nil pointer.
func nils[T any](where string, of map[string]T) (all Problems) {
	for name, one := range of {
		value := reflect.ValueOf(one)
		kind := value.Kind()
		if kind == reflect.Invalid || (kind == reflect.Pointer || kind == reflect.Func) && value.IsNil() {
			all = append(all, Problem{Text: fmt.Sprintf("Wiring.%s[%q] is nil", where, name)})
		}
	}
	return all
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

// formerKey returns the zero key if the rules have none.
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

// before returns the work that comes before the transactions of handler.
func (w *Wiring) before(handler string, r Rules) (func(*message.Message) error, error) {
	before := w.Before[handler]
	if before == nil && r.SideEffects == OnceSteps {
		return nil, lack{"side_effects", fmt.Sprintf("strategy %s has a transaction, which a step would hold: "+
			"do the steps in Wiring.Before[%q], or take strategy dedup", r.Strategy, handler)}
	}
	return before, nil
}

// named returns a function that looks up the names in a policy field.
func named[T any](field, where string, all map[string]T) func(name string) (T, error) {
	return func(name string) (T, error) {
		one, ok := all[name]
		if ok {
			return one, nil
		}
		if len(all) == 0 {
			return one, lack{field, fmt.Sprintf("%q must be in Wiring.%s, which is empty", name, where)}
		}
		known := slices.Sorted(maps.Keys(all))
		return one, lack{field, fmt.Sprintf("%q is not in Wiring.%s, which has %s%s", name, where, strings.Join(known, ", "), didYouMean(name, known))}
	}
}

// lack is something that the wiring does not have and a field of the policy needs.
type lack struct{ field, text string }

func (l lack) Error() string { return l.field + ": " + l.text }
