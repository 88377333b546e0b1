package metrics

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"
)

// figures is a [prometheus.Collector] of the tables. It reads them once at a time, and at most once
// per interval, however many scrapes there are.
type figures struct {
	config *Config
	name   string // of what it reads
	descs  []*prometheus.Desc
	look   func(ctx context.Context) ([]prometheus.Metric, error) // none with an error

	up, took *prometheus.Desc
	errors   prometheus.Counter

	mu      sync.Mutex
	late    <-chan looked // a look that did not end in time, until it has ended
	looked  time.Time
	found   []prometheus.Metric
	lasted  time.Duration
	healthy bool
}

func newFigures(c *Config, subsystem string) *figures {
	f := &figures{config: c, name: subsystem}
	f.up = f.desc(subsystem, "up", "1 if the last look at the tables succeeded.")
	f.took = f.desc(subsystem, "look_seconds", "How long the last look at the tables took.")
	f.errors = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: c.Namespace, Subsystem: subsystem, Name: "look_failures_total", Help: "Looks at the tables that failed.",
	})
	f.descs = append(f.descs, f.errors.Desc())
	return f
}

// desc describes one of the gauges.
func (f *figures) desc(subsystem, name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(prometheus.BuildFQName(f.config.Namespace, subsystem, name), help, labels, nil)
	f.descs = append(f.descs, d)
	return d
}

// Describe implements [prometheus.Collector].
func (f *figures) Describe(to chan<- *prometheus.Desc) {
	for _, d := range f.descs {
		to <- d
	}
}

// Collect implements [prometheus.Collector]. If the tables could not be read, there are no gauges.
func (f *figures) Collect(to chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.looked.IsZero() || time.Since(f.looked) >= f.config.Interval {
		f.lookAgain()
	}
	up := 0.0
	if f.healthy {
		up = 1
	}
	to <- prometheus.MustNewConstMetric(f.up, prometheus.GaugeValue, up)
	to <- prometheus.MustNewConstMetric(f.took, prometheus.GaugeValue, f.lasted.Seconds())
	to <- f.errors
	for _, m := range f.found {
		to <- m
	}
}

func (f *figures) lookAgain() {
	ctx, cancel := context.WithTimeout(context.Background(), f.config.Timeout)
	defer cancel()
	began := time.Now()
	found, err := f.outlive(ctx)
	f.looked = time.Now()
	f.lasted, f.healthy, f.found = f.looked.Sub(began), err == nil, found
	if err != nil {
		f.errors.Inc()
		f.config.Logger.Error("metrics: could not read the tables", err, watermill.LogFields{"of": f.name})
	}
}

// looked is the result of a look.
type looked struct {
	found []prometheus.Metric
	err   error
}

// outlive reads the tables, and returns when ctx ends even if the driver, such as lib/pq, does not. Until that look has
// ended there is no other, so that they do not use up the pool.
func (f *figures) outlive(ctx context.Context) ([]prometheus.Metric, error) {
	if f.late != nil {
		select {
		case <-f.late:
			f.late = nil
		default:
			return nil, errLate
		}
	}
	over := make(chan looked, 1)
	go f.recovered(ctx, over)
	select {
	case it := <-over:
		return it.found, it.err
	case <-ctx.Done():
		f.late = over
		return nil, ctx.Err()
	}
}

var errLate = errors.New("an earlier look has not ended, since the driver does not heed Config.Timeout")

// recovered looks, and recovers panics: Prometheus collects in its own goroutines, so a panic would end the process.
func (f *figures) recovered(ctx context.Context, over chan<- looked) {
	it := looked{err: errors.New("the look-up ended its goroutine with runtime.Goexit")}
	defer func() {
		if r := recover(); r != nil {
			it.err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
		over <- it
	}()
	it.found, it.err = f.look(ctx)
}

// gauge returns a gauge metric.
func gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
