// Package pubsub is what stands between a broker and a Watermill router. [Durable] puts the
// inbox's table behind any subscriber; the packages below it adapt single brokers.
package pubsub
