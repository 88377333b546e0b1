// Package policy keeps the rules of all consumers of a service in one place, as a Go value or as a
// YAML file with the same meaning. You review the rules like code; package policy checks them when
// the service starts, and enforces them while it runs.
//
//	rules, err := policy.ReadFile("policy.yaml")
//	wired, err := rules.Wire(router, policy.Wiring{Store: store, Outbox: out})
//
//	orders, err := wired.Subscriber("billing", orders) // with a queue, if the rules need one
//	router.AddConsumerHandler("billing", "orders", orders, bill)
//
// A [Policy] has [Rules] for each consumer. A [Strategy] names the middlewares around a handler.
// [Policy.Wire] adds one middleware to the router. It applies to each handler the rules of that
// handler, and Router.Run fails if router and policy do not match. [Policy.Check] returns what is
// wrong with a policy. [Policy.Explain] lists the rules of one handler, and where each comes from.
package policy
