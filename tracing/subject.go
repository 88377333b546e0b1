package tracing

import (
	"maps"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// operation is an operation on messages. It caches what its spans about one topic share.
type operation struct {
	name       string
	attributes []attribute.KeyValue

	mu     sync.Mutex // held to add a topic
	topics atomic.Pointer[map[string]*subject]
}

// subject is the name and the common attributes of spans about one topic.
type subject struct {
	name       string
	attributes []attribute.KeyValue
}

// mostTopics limits the cache, since some services make a topic for each message.
const mostTopics = 1000

func newOperation(name, system string, kind attribute.KeyValue) *operation {
	o := &operation{name: name, attributes: []attribute.KeyValue{
		semconv.MessagingOperationName(name), kind, semconv.MessagingSystemKey.String(system),
	}}
	o.topics.Store(&map[string]*subject{})
	return o
}

// on returns what the spans of o about topic share.
func (o *operation) on(topic string) *subject {
	if known := (*o.topics.Load())[topic]; known != nil {
		return known
	}
	made := &subject{name: named(o.name, topic), attributes: o.attributes[:len(o.attributes):len(o.attributes)]}
	if topic != "" {
		made.attributes = append(made.attributes, semconv.MessagingDestinationName(plain(topic)))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if known := *o.topics.Load(); len(known) < mostTopics {
		more := maps.Clone(known)
		more[topic] = made
		o.topics.Store(&more)
	}
	return made
}
