package policy

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/millrace-go/millrace/inbox"
)

// contradiction is a combination of settings that one handler cannot have.
type contradiction struct {
	// fields are the settings that it looks at. The problem is reported at the first one that the
	// consumer itself sets, else at the first one that Defaults set.
	fields []string

	// own limits the check to consumers that set the first field themselves: if the value comes
	// from Defaults, it does no harm.
	own bool

	is   func(r Rules) bool
	says func(r Rules) string
}

var contradictions = []contradiction{
	{
		fields: []string{"retention", "window"},
		is:     func(r Rules) bool { return r.Window > 0 && r.remembers() != Forever && r.remembers() < r.Window },
		says: func(r Rules) string {
			return fmt.Sprintf("what is remembered for %s may be delivered again for %s (window), and would be handled twice: "+
				"write a retention of at least %s, better twice that", r.remembers(), r.Window, r.Window)
		},
	},
	{
		fields: []string{"retry.attempts", "strategy", "ack", "version.on_gap"},
		is:     func(r Rules) bool { return r.Retry.Attempts > 0 && !r.queues() }, says: noQueue,
	},
	{
		fields: []string{"retry.backoff", "strategy", "ack", "version.on_gap"},
		is:     func(r Rules) bool { return r.Retry.Backoff > 0 && !r.queues() }, says: noQueue,
	},
	{
		fields: []string{"retry.max_backoff", "strategy", "ack", "version.on_gap"},
		is:     func(r Rules) bool { return r.Retry.MaxBackoff > 0 && !r.queues() }, says: noQueue,
	},
	{
		fields: []string{"alerts.pending_age", "strategy", "ack", "version.on_gap"},
		is:     func(r Rules) bool { return r.Alerts.PendingAge > 0 && !r.queues() }, says: noQueue,
	},
	{
		fields: []string{"retry.backoff", "retry.max_backoff"},
		is:     func(r Rules) bool { return r.queues() && r.backoff() > r.maxBackoff() },
		says: func(r Rules) string {
			return fmt.Sprintf("the pause begins at %s and ends at %s (max_backoff), which is less: write a max_backoff of at least %s",
				r.backoff(), r.maxBackoff(), r.backoff())
		},
	},
	{
		fields: []string{"former_key.from", "former_key.within", "epoch"},
		is:     func(r Rules) bool { return r.FormerKey != Key{} && (r.Epoch == 0 || r.FormerKey.is(r.Key)) },
		says: func(Rules) string {
			return "this is the key of the epoch before: raise epoch by 1 where key changes, and write here what key was"
		},
	},
	{
		fields: []string{"order_key", "ack", "strategy"},
		is:     func(r Rules) bool { return r.OrderKey != "" && r.Ack != AckStored },
		says: func(Rules) string {
			return "messages that go straight to the handler are not ordered: write ack: stored beside it"
		},
	},
	{
		fields: []string{"on_parked", "order_key"}, own: true,
		is: func(r Rules) bool { return r.OnParked != "" && r.OrderKey == "" },
		says: func(Rules) string {
			return "without an order_key no message waits behind a parked one: write one, or leave it out"
		},
	},
	{
		fields: []string{"version.max_held", "version.on_gap", "ack"}, own: true,
		is: func(r Rules) bool { return r.Version.MaxHeld > 0 && r.holdsNone() }, says: notHeld,
	},
	{
		fields: []string{"version.held_for", "version.on_gap", "ack"}, own: true,
		is: func(r Rules) bool { return r.Version.HeldFor > 0 && r.holdsNone() }, says: notHeld,
	},
	{
		fields: []string{"version.gap_for", "version.on_gap", "ack"}, own: true,
		is: func(r Rules) bool { return r.Version.GapFor > 0 && !r.holdsNone() },
		says: func(Rules) string {
			return "a message goes back to its source only with on_gap: fail and without a queue: leave it out, or write on_gap: fail"
		},
	},
	{
		fields: []string{"alerts.held_age", "version.on_gap", "ack"}, own: true,
		is: func(r Rules) bool { return r.Alerts.HeldAge > 0 && r.holdsNone() }, says: notHeld,
	},
	{
		fields: []string{"batch.max", "shadow"}, own: true,
		is: func(r Rules) bool { return r.Batch.Max > 0 && r.Shadow }, says: noBatch,
	},
	{
		fields: []string{"batch.max_bytes", "shadow"}, own: true,
		is: func(r Rules) bool { return r.Batch.MaxBytes > 0 && r.Shadow }, says: noBatch,
	},
	{
		fields: []string{"batch.linger", "shadow"}, own: true,
		is: func(r Rules) bool { return r.Batch.Linger > 0 && r.Shadow }, says: noBatch,
	},
	{
		fields: []string{"replay", "side_effects"},
		is:     func(r Rules) bool { return r.SideEffects == AcceptDuplicates && r.Replay != ReplayRefuse },
		says: func(r Rules) string {
			return fmt.Sprintf("a replayed message would run the handler, and its side effects would happen twice (accept-duplicates), "+
				"and %s does not stop that: write replay: refuse, or make the effects safe with provider-key, deterministic-id or once", r.Replay)
		},
	},
	{
		fields: []string{"replay", "strategy"},
		is:     func(r Rules) bool { return r.Replay == ReplaySuppress && !r.Strategy.means("timeout") },
		says: func(r Rules) string {
			return fmt.Sprintf("suppress drops what a handler sends in its transaction, and strategy %s has no transaction: write allow or refuse, "+
				"or take strategy inbox", r.Strategy)
		},
	},
	{
		fields: []string{"replay", "strategy"},
		is: func(r Rules) bool {
			return r.Replay == ReplayRefuse && r.Strategy == None && r.SideEffects != AcceptDuplicates
		},
		says: func(Rules) string {
			return "strategy none does not look at messages, so it cannot refuse any: take strategy dedup, or leave it out"
		},
	},
	{
		fields: []string{"side_effects", "strategy"},
		is:     func(r Rules) bool { return r.SideEffects == AcceptDuplicates && r.Strategy == None },
		says: func(Rules) string {
			return "with strategy none a replay causes all of them again: take strategy dedup, " +
				"or make them safe with provider-key or deterministic-id"
		},
	},
	{
		fields: []string{"side_effects", "strategy"},
		is: func(r Rules) bool {
			return r.Strategy == Intent && r.SideEffects != "" && r.SideEffects != NoSideEffects
		},
		says: func(r Rules) string {
			return fmt.Sprintf("with strategy intent the handler stores what is to be done, and another consumer does it: write %s there, and none here",
				r.SideEffects)
		},
	},
	{
		fields: []string{"side_effects", "strategy"},
		is: func(r Rules) bool {
			return r.SideEffects == OnceSteps && (r.Strategy == None || r.Strategy.means("version"))
		},
		says: func(r Rules) string {
			if r.Strategy == None {
				return "once is for a handler whose messages are remembered: take strategy dedup"
			}
			return fmt.Sprintf("strategy %s decides in its transaction whether a message is handled, and would hold it during each step: "+
				"have the handler publish what is to be done through the outbox, and another consumer with strategy dedup do the steps", r.Strategy)
		},
	},
}

func noQueue(r Rules) string {
	out := "strategy durable, or ack: stored"
	if r.Strategy == Gate {
		out = "on_gap: hold, or ack: stored"
	}
	return fmt.Sprintf("strategy %s keeps no message that failed: its source delivers it again; leave this out, or take %s", r.Strategy, out)
}

func noBatch(Rules) string {
	return "a batch needs the inbox's transaction, which shadow mode does not begin: leave shadow out, or batch"
}

func notHeld(Rules) string {
	return "with on_gap: fail and without a queue no message is stored to wait for another: leave it out, or take on_gap: hold"
}

// together reports contradictions among the settings of a consumer: own are those that it sets
// itself, applies are all.
func (c *checker) together(path string, own, applies Rules) {
	of, defaults := fieldValues(&own), fieldValues(&c.policy.Defaults)
	for _, rule := range contradictions {
		main := rule.fields[0]
		harmless := rule.own && of[main].IsZero()
		if harmless || !applies.Strategy.means(main) || c.anyBroken(path, rule.fields, of) || !rule.is(applies) {
			continue
		}
		at := path + "." + main
		for i := len(rule.fields) - 1; i >= 0; i-- {
			if name := rule.fields[i]; !defaults[name].IsZero() {
				at = "defaults." + name
			}
		}
		for i := len(rule.fields) - 1; i >= 0; i-- {
			if name := rule.fields[i]; !of[name].IsZero() {
				at = path + "." + name
			}
		}
		c.problem(at, "%s", rule.says(applies))
	}
}

// anyBroken reports whether one of the fields could not be read, or is out of range, in the
// consumer or in Defaults.
func (c *checker) anyBroken(path string, fields []string, own map[string]reflect.Value) bool {
	bad := func(at string) bool { return c.isBroken(at) || c.wild[at] }
	return slices.ContainsFunc(fields, func(name string) bool {
		return bad(path+"."+name) || own[name].IsZero() && bad("defaults."+name)
	})
}

// queues reports whether a queue keeps failed messages once the rules are enforced.
func (r Rules) queues() bool {
	r.Shadow = false
	_, is := r.queued()
	return is
}

// holdsNone reports whether the gate never holds a message that comes too early.
func (r Rules) holdsNone() bool { return r.Version.OnGap == GapFail && !r.queues() }

// remembers, backoff and maxBackoff return the settings with their defaults.
func (r Rules) remembers() Duration  { return orElse(r.Retention, 7*day) }
func (r Rules) backoff() Duration    { return orElse(r.Retry.Backoff, time.Second) }
func (r Rules) maxBackoff() Duration { return orElse(r.Retry.MaxBackoff, 5*time.Minute) }

func orElse(d Duration, otherwise time.Duration) Duration {
	if d == 0 {
		return Duration(otherwise)
	}
	return d
}

// checkKey and checkVersion report what the wiring would not understand. Only the wiring knows the
// names of functions.
func checkKey(from string) error {
	_, err := parseKey(from, anyKey)
	return err
}

// anyKey stands for the key that the wiring has under a name.
func anyKey(name string) (inbox.Key, error) { return inbox.ByFunc(name, nil), nil }

// is reports whether k and other are the same key, however they are written.
func (k Key) is(other Key) bool {
	one, err := k.inboxKey(anyKey)
	two, otherErr := other.inboxKey(anyKey)
	return err == nil && otherErr == nil && one.String() == two.String()
}

func checkVersion(from string) error {
	_, err := Version{From: from}.inboxVersion(func(string) (inbox.VersionFunc, error) { return inbox.VersionFromMetadata(), nil })
	return err
}
