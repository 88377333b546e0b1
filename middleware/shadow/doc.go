// Package shadow watches the deliveries of live consumers and enforces nothing. It says how
// many are copies, by each of several keys, how many versions come early or late, and how
// far apart copies are: what there is to know before a consumer gets an inbox, a key, a
// retention and a version gate.
//
//	watch, err := shadow.New(shadow.Config{Keys: []inbox.Key{inbox.ByMetadata("order_id")}})
//	router.AddMiddleware(watch.Middleware) // where middleware.Inbox would stand
//	...
//	fmt.Print(watch.Report())
//
// The handler runs exactly as it would without: the same message, context, result, error
// and panic. What is known is in memory and bounded, gone with the process, and of this
// process alone.
package shadow
