// Package policy keeps the rules of all consumers of a service in one place: a Go value, or a
// YAML file with the same meaning, that is reviewed like code, checked when the service starts,
// and enforced while it runs.
//
//	rules, err := policy.ReadFile("policy.yaml")
//	wired, err := rules.Wire(router, policy.Wiring{Store: store, Outbox: out})
//
//	orders, err := wired.Subscriber("billing", orders) // with a queue, where the rules want one
//	router.AddConsumerHandler("billing", "orders", orders, bill)
//
// [Policy] says what applies, [Rules] are those of one consumer, and [Strategy] is what stands
// around its handler. [Policy.Wire] adds one middleware, which gives each handler of the router
// what its rules say, and has Router.Run fail where the two do not fit. [Policy.Explain] says
// what applies to a handler and why, [Policy.Check] what is wrong.
package policy
