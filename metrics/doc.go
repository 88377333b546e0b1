// Package metrics reports to Prometheus what package inbox and package outbox do, and how many
// messages their tables hold.
//
//	registry := prometheus.NewRegistry()
//	m, err := metrics.NewBuilder(registry, metrics.Config{})
//	store, err := inbox.NewStore(db, inbox.Config{Observers: []inbox.Observer{m.Inbox()}})
//	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{Observers: []outbox.Observer{m.Relay()}})
//	err = m.WatchStore(store)   // gauges of the inbox's tables
//	err = m.WatchOutbox(out)    // gauges of the outbox's tables
//	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
//
// [Builder.Shadow] is the observer for package middleware/shadow.
//
// The package has no global state: it registers all metrics with the Registerer that the service
// gives. A second Builder on the same Registerer shares the counters of the first.
//
// # Counters and gauges
//
// Observers update the counters and histograms, in the goroutine of the delivery or of the relay.
// They count what one process did: add them up over all processes.
//
// The gauges of the tables are read when Prometheus scrapes, at most once per Config.Interval. They
// hold for the whole service, and every process that watches reports the same values: take the
// maximum. If the database does not answer, the gauges are absent, because old values would look
// like current ones, and millrace_inbox_up or millrace_outbox_up is 0. Messages are counted up to
// Config.CountTo.
//
// # Labels
//
// The values of consumer come from the service's configuration; those of reason, result, state and
// age are sets that package inbox documents. event_type and topic come from messages: beyond
// Config.MaxValues event types of a consumer, or topics, the rest are counted as "other". A service
// with several databases adds the label database, see [Builder.WatchStore].
//
// # Alerts
//
// Beside this file are alerts.yml, rules for Prometheus, and dashboard.json, a dashboard for
// Grafana; [Alerts] and [Dashboard] return them. docs/runbook.md says what to do about each alert;
// docs/metrics.md lists all metrics.
package metrics
