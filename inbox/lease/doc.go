// Package lease keeps the leases of middleware.Deduplicate in the memory of a process. Those in the
// service's database are [github.com/millrace-go/millrace/inbox.Store.Leases], those in Redis package
// middleware/redisleases.
package lease
