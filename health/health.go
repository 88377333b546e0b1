// Package health answers the health checks of a service: whether its database answers, and what is
// wrong with its inbox and outbox.
//
//	checks, err := health.NewHandler(health.Config{Store: store, Outbox: publisher})
//	http.Handle("/healthz", checks)
//
// The status is 503 if the database does not answer or lacks a table that a check reads, else 200. What
// is wrong besides is in the body: a restart of the service mends none of it. [Config.Strict] answers
// 503 for it too, for a monitor that only reads the status.
package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/problems"
	"github.com/millrace-go/millrace/outbox"
)

// Config says what a [Handler] checks.
type Config struct {
	// Store is the inbox of the service. It is required.
	Store *inbox.Store

	// Outbox is the outbox of the service. Without it, no relay is looked for.
	Outbox *outbox.Publisher

	// Timeout is how long the database may take to answer. Defaults to 2 seconds.
	Timeout time.Duration

	// Interval is how long an answer is given again before the tables are read anew. Defaults to 5
	// seconds.
	Interval time.Duration

	// Strict answers 503 if the severity of a problem is error. Leave it off for Kubernetes: one
	// parked message would take every process of the service away.
	Strict bool
}

// Validate returns every problem of c at once.
func (c Config) Validate() error {
	var wrong []error
	problem := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if c.Store == nil {
		problem("a Store is required")
	}
	if c.Timeout < 0 {
		problem("Timeout %v is negative", c.Timeout)
	}
	if c.Interval < 0 {
		problem("Interval %v is negative", c.Interval)
	}
	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("health: invalid settings: %w", err)
	}
	return nil
}

// Report is the body of an answer, as JSON. It has no texts of errors, which may have parts of messages:
// the log, the command and the dashboard show them.
type Report struct {
	Status   Status    `json:"status"`
	Problems []Problem `json:"problems"`
}

// Status sums up a [Report].
type Status string

// The statuses of a report.
const (
	OK       Status = "ok"
	Degraded Status = "degraded" // the database answers, and something is wrong
	Down     Status = "down"     // the database does not answer, or lacks a table that a check reads
)

// Problem is one thing that is wrong, as millrace status lists it.
type Problem struct {
	Kind     string `json:"kind"`     // "database-out", "no-relay", "gap" …
	Severity string `json:"severity"` // "error" or "warning"
	Consumer string `json:"consumer,omitempty"`
	Epoch    int    `json:"epoch,omitempty"`
	Count    int    `json:"count,omitempty"`    // of messages
	AtLeast  bool   `json:"at_least,omitempty"` // there are more than Count
	Seconds  int64  `json:"seconds,omitempty"`  // for how long
}

// Handler answers health checks. It is safe for concurrent use.
type Handler struct {
	config Config

	mu     sync.Mutex
	now    *look // nil if nobody reads the tables
	looked time.Time
	report Report
}

// look reads the tables once, for all checks that come meanwhile.
type look struct {
	until  time.Time
	over   chan struct{}
	report Report // once it is over
}

// NewHandler returns a handler, or an error with all problems of config.
func NewHandler(config Config) (*Handler, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Timeout == 0 {
		config.Timeout = 2 * time.Second
	}
	if config.Interval == 0 {
		config.Interval = 5 * time.Second
	}
	return &Handler{config: config}, nil
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET and HEAD are answered", http.StatusMethodNotAllowed)
		return
	}
	report := h.Report() //nolint:contextcheck // others wait for the same answer
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(h.code(report))
	_ = json.NewEncoder(w).Encode(report) // the client has left
}

// Report returns what a check answers now. Checks that come at once share one look at the tables, of which they wait for
// Timeout, even for a driver such as lib/pq, which waits longer.
func (h *Handler) Report() Report {
	h.mu.Lock()
	if h.now == nil && (h.looked.IsZero() || time.Since(h.looked) >= h.config.Interval) {
		h.now = &look{until: time.Now().Add(h.config.Timeout), over: make(chan struct{})}
		go h.look(h.now, h.report.Status)
	}
	now, report := h.now, h.report
	h.mu.Unlock()
	if now == nil {
		return report
	}
	timer := time.NewTimer(time.Until(now.until))
	defer timer.Stop()
	select {
	case <-now.over:
		return now.report
	case <-timer.C:
		return reportOf(problems.Problem{Kind: problems.DatabaseOut})
	}
}

func (h *Handler) code(report Report) int {
	if report.Status == Down {
		return http.StatusServiceUnavailable
	}
	for _, p := range report.Problems {
		if h.config.Strict && p.Severity == inbox.Error.String() {
			return http.StatusServiceUnavailable
		}
	}
	return http.StatusOK
}

// look reads the tables.
func (h *Handler) look(now *look, before Status) {
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.now, h.looked, h.report = nil, time.Now(), now.report
		close(now.over)
	}()
	ctx, cancel := context.WithDeadline(context.Background(), now.until)
	defer cancel()
	now.report = reportOf(problems.Problem{Kind: problems.Unreadable}) // if a driver ends this goroutine
	found, err := h.find(ctx)
	if err != nil {
		kind := problems.Unreadable
		if errors.Is(err, inbox.ErrUnavailable) || errors.Is(err, outbox.ErrUnavailable) || ctx.Err() != nil {
			kind = problems.DatabaseOut
		}
		found = []problems.Problem{{Kind: kind}}
	}
	now.report = reportOf(found...)
	if err != nil && before != Down { // once
		h.config.Store.Logger().Error("health: the tables cannot be read", err, nil)
	}
}

func reportOf(found ...problems.Problem) Report {
	report := Report{Status: OK, Problems: []Problem{}}
	for _, p := range found {
		report.Problems = append(report.Problems, Problem{
			Kind: string(p.Kind), Severity: p.Severity().String(), Consumer: p.Consumer, Epoch: p.Epoch,
			Count: p.Count.N, AtLeast: p.Count.AtLeast, Seconds: int64(p.Since.Seconds()),
		})
		switch {
		case p.Kind == problems.DatabaseOut || p.Kind == problems.Unreadable:
			report.Status = Down
		case report.Status == OK:
			report.Status = Degraded
		}
	}
	return report
}

func (h *Handler) find(ctx context.Context) (found []problems.Problem, err error) {
	defer func() {
		if p := recover(); p != nil { // the cipher's, say
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	service := problems.Service{Store: h.config.Store}
	if service.Backlogs, err = admin.New(h.config.Store).Backlog(ctx, admin.BacklogOptions{}); err != nil {
		return nil, err
	}
	if h.config.Outbox != nil {
		if service.Outbox, err = problems.LookAt(ctx, h.config.Outbox); err != nil {
			return nil, err
		}
	}
	return problems.Find(ctx, service)
}
