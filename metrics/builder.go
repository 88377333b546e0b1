package metrics

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/internal/steady"
	"github.com/millrace-go/millrace/outbox"
)

// Builder makes the observers and collectors of a service's stores, relays and publishers. It is
// safe for concurrent use; one serves a whole process.
type Builder struct {
	registry prometheus.Registerer
	config   Config
	inbox    *inboxObserver
	relay    *relayObserver
	shadow   *ShadowObserver
}

// NewBuilder registers the counters and histograms in the service's registry. If another Builder
// has registered them there, the two share them.
func NewBuilder(registry prometheus.Registerer, config Config) (*Builder, error) {
	if registry == nil {
		return nil, errors.New("metrics: NewBuilder needs a prometheus.Registerer")
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	config.Logger = steady.Logger(config.Logger, nil)
	r := &registrar{registry: registry, config: &config}
	b := &Builder{
		registry: registry, config: config,
		inbox: newInboxObserver(r), relay: newRelayObserver(r), shadow: newShadowObserver(r),
	}
	if err := errors.Join(r.problems...); err != nil {
		return nil, fmt.Errorf("metrics: register: %w", err)
	}
	return b, nil
}

// Inbox returns the observer for inbox.Config.Observers and inbox.LeasesConfig.Observers: the same
// value each time.
func (b *Builder) Inbox() inbox.Observer { return b.inbox }

// Relay returns the observer for outbox.RelayConfig.Observers: the same value each time. Two relays of a process need a Builder
// each, whose registerer has a label of its own, as prometheus.WrapRegistererWith makes it: else each relay overwrites
// millrace_outbox_broker_out and millrace_outbox_owned_shards of the other.
func (b *Builder) Relay() outbox.Observer { return b.relay }

// Shadow returns the observer for shadow.Config.Observers: the same value each time.
func (b *Builder) Shadow() *ShadowObserver { return b.shadow }

// WatchStore registers the gauges of the inbox's tables. A registry takes one Store. A service with
// two gives each a Builder of its own, on registries that prometheus.WrapRegistererWith made with a
// label named "database", by which the rules for alerts tell them apart.
func (b *Builder) WatchStore(store *inbox.Store) error {
	if store == nil {
		return errors.New("metrics: WatchStore needs a *inbox.Store")
	}
	return b.watch("a Store", newStoreCollector(b, store))
}

// WatchOutbox registers the gauges of the outbox's tables. A registry takes one Publisher, as with
// [Builder.WatchStore].
func (b *Builder) WatchOutbox(publisher *outbox.Publisher) error {
	if publisher == nil {
		return errors.New("metrics: WatchOutbox needs a *outbox.Publisher")
	}
	return b.watch("an outbox", newOutboxCollector(b, publisher))
}

func (b *Builder) watch(what string, c prometheus.Collector) error {
	err := b.registry.Register(c)
	if errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		return fmt.Errorf("metrics: this registry watches %s already: if there are two, give each a Builder "+
			"of its own, on a registry made by prometheus.WrapRegistererWith with a label \"database\" that tells them apart", what)
	}
	if err != nil {
		return fmt.Errorf("metrics: watch %s: %w", what, err)
	}
	return nil
}

// registrar registers metrics, or returns those that an earlier Builder registered.
type registrar struct {
	registry prometheus.Registerer
	config   *Config
	problems []error
}

func register[C prometheus.Collector](r *registrar, made C) C {
	err := r.registry.Register(made)
	if err == nil {
		return made
	}
	var known prometheus.AlreadyRegisteredError
	if errors.As(err, &known) {
		if same, ok := known.ExistingCollector.(C); ok {
			return same
		}
	}
	r.problems = append(r.problems, err)
	return made
}

func (r *registrar) counters(subsystem, name, help string, labels ...string) *prometheus.CounterVec {
	return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: r.config.Namespace, Subsystem: subsystem, Name: name, Help: help,
	}, labels))
}

func (r *registrar) counter(subsystem, name, help string) prometheus.Counter {
	return register(r, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: r.config.Namespace, Subsystem: subsystem, Name: name, Help: help,
	}))
}

func (r *registrar) gauge(subsystem, name, help string) prometheus.Gauge {
	return register(r, prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: r.config.Namespace, Subsystem: subsystem, Name: name, Help: help,
	}))
}

func (r *registrar) gauges(subsystem, name, help string, labels ...string) *prometheus.GaugeVec {
	return register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: r.config.Namespace, Subsystem: subsystem, Name: name, Help: help,
	}, labels))
}

func (r *registrar) histograms(subsystem, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: r.config.Namespace, Subsystem: subsystem, Name: name, Help: help, Buckets: buckets,
	}, labels))
}
