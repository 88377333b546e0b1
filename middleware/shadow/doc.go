// Package shadow watches the deliveries of live consumers and enforces nothing. It reports how
// many deliveries are copies by each of several keys, how far apart the copies are, and how many
// versions come early or late. With these figures you choose a key, a retention and a version
// gate before a consumer gets an inbox.
//
//	watch, err := shadow.New(shadow.Config{Keys: []inbox.Key{inbox.ByMetadata("order_id")}})
//	router.AddMiddleware(watch.Middleware) // in the place of middleware.Inbox
//	...
//	fmt.Print(watch.Report())
//
// The handler runs exactly as without it: with the same message, context, result, error and
// panic. The figures are those of one process; they are kept in bounded memory and lost when the
// process ends.
package shadow
