// Package pubsub stands between a broker and a Watermill router. [Durable] puts the inbox's table
// behind any subscriber; [AsReplay] marks messages that are sent again on purpose; the packages
// below it adapt single brokers.
package pubsub
