// Package lease has the interface that a store of leases implements, and a store in memory.
//
// A lease is a claim on a message that ends by itself: middleware.Deduplicate takes one before it
// runs a handler that has no transaction, and confirms it afterwards. A [Store] keeps the leases;
// inbox.NewLeases makes of it what middleware.Deduplicate takes:
//
//	claims := inbox.NewLeases(&lease.Memory{}, inbox.LeasesConfig{})
//	router.AddMiddleware(millrace.Deduplicate{Claims: claims}.Middleware)
//
// [Memory] keeps them in the memory of a process. Those in the service's database are
// inbox.Store.Leases, those in Redis are package middleware/redisleases. A Store of your own should
// implement [Extender] too, so that a lease lasts as long as its handler runs.
package lease
