package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/middleware/shadow"
)

// Shadow reports what this process has seen of the handlers whose rules set Shadow. [Suggest] makes
// rules of each consumer in the report.
func (w *Wired) Shadow() shadow.Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all shadow.Report
	for _, watch := range w.watches {
		r := watch.Report()
		if all.Began.IsZero() || r.Began.Before(all.Began) {
			all.Began = r.Began
		}
		all.At = r.At
		all.Panics += r.Panics
		all.Consumers = append(all.Consumers, r.Consumers...)
	}
	slices.SortFunc(all.Consumers, func(a, b shadow.Consumer) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// around returns the middleware of a handler: the one that its rules choose, or a watch.
func (w *Wired) around(handler string, r Rules) (message.HandlerMiddleware, error) {
	if w.isBatched(handler) { // nothing is around it
		return func(next message.HandlerFunc) message.HandlerFunc { return next }, nil
	}
	if !r.Shadow {
		return w.guard(handler, r)
	}
	watch, err := w.watch(handler, r)
	if err != nil {
		return nil, err
	}
	return watch.Middleware, nil
}

// watch finds or makes the watch of a handler. The watch also tries the key and the version of its
// rules.
func (w *Wired) watch(handler string, r Rules) (*shadow.Watch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if watch, known := w.watches[handler]; known {
		return watch, nil
	}
	config := w.wiring.Shadow
	key, err := w.wiring.key(r)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(config.Keys, func(k inbox.Key) bool { return k.String() == key.String() }) {
		config.Keys = append(slices.Clone(config.Keys), key)
	}
	if r.Strategy.means("version") {
		version, err := w.wiring.version(r)
		if err != nil {
			return nil, err
		}
		config.Versions = maps.Clone(config.Versions)
		if config.Versions == nil {
			config.Versions = map[string]inbox.VersionFunc{}
		}
		config.Versions[cmp.Or(r.Version.From, "metadata")] = version
	}
	watch, err := shadow.New(config)
	if err == nil {
		w.watches[handler] = watch
	}
	return watch, err
}
