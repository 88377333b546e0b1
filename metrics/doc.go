// Package metrics tells Prometheus what package inbox and package outbox do and what lies in
// their tables.
//
//	registry := prometheus.NewRegistry()
//	m, err := metrics.NewBuilder(registry, metrics.Config{})
//	store, err := inbox.NewStore(db, inbox.Config{Observers: []inbox.Observer{m.Inbox()}})
//	relay, err := outbox.NewRelay(db, broker, outbox.RelayConfig{Observers: []outbox.Observer{m.Relay()}})
//	err = m.WatchStore(store)   // figures of the inbox's tables
//	err = m.WatchOutbox(out)    // and of the outbox's
//	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
//
// There is no global state: what is measured goes to the Registerer that the service gives,
// and a second Builder on it shares the counters of the first.
//
// # Events and figures
//
// Counters and histograms are told by observers, in the goroutine of the delivery or of the
// relay, and say what this process did: add them up over all processes.
//
// Gauges of the tables are read when Prometheus asks, at most once in Config.Interval, and
// are those of the whole service: every process that watches tells the same, so take the
// maximum. While the database does not answer they are absent, and millrace_inbox_up or
// millrace_outbox_up is 0: an old figure would look like a good one. Numbers of messages are
// counted up to Config.CountTo.
//
// # Labels
//
// consumer is bounded by what is configured, reason, result, state and age by sets that
// package inbox documents. event_type and topic come from messages: after Config.MaxValues of
// them for one consumer, others are counted as "other".
//
// # Alerts
//
// alerts.yml beside this file has rules for Prometheus, dashboard.json a dashboard for
// Grafana, and docs/runbook.md what to do about each alert. docs/metrics.md lists all metrics.
package metrics
