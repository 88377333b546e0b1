package dashboard

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/internal/problems"
)

// Handler serves the dashboard. It is safe for concurrent use.
type Handler struct {
	store   *inbox.Store
	ops     *admin.Admin
	config  Config
	cross   *http.CrossOriginProtection
	pages   map[string]page
	files   map[string]file
	actions map[string]action
	samples samples
	checks  checks
	groups  recent[[]admin.FailureGroup]
	regroup chan struct{} // tells Run to read groups
	wrong   recent[[]problems.Problem]
	done    activities
}

// page collects what a template shows.
type page struct {
	template string
	tab      string // in the navigation
	title    string
	gather   func(*visit) (any, error)
}

// New returns a Handler for store and config.Outbox. It makes no call to the database. It reports
// all problems of config at once.
func New(store *inbox.Store, config Config) (*Handler, error) {
	if store == nil {
		return nil, errors.New("dashboard: a Store is needed")
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults(store.Logger())
	h := &Handler{store: store, ops: admin.New(store), config: config, cross: http.NewCrossOriginProtection(), regroup: make(chan struct{}, 1)}
	h.samples.turn, h.checks.turn, h.groups.turn, h.wrong.turn, h.done.turn = newTurn(), newTurn(), newTurn(), newTurn(), newTurn()
	h.pages = map[string]page{
		"":          {"overview.html", "overview", "Overview", h.overview},
		"inbox":     {"inbox.html", "inbox", "Inbox", h.inbox},
		"message":   {"message.html", "inbox", "Message", h.message},
		"failures":  {"failures.html", "failures", "Failures", h.failures},
		"failure":   {"failure.html", "failures", "Failure group", h.failure},
		"waiting":   {"waiting.html", "waiting", "Waiting", h.waiting},
		"aggregate": {"aggregate.html", "waiting", "Aggregate", h.aggregate},
		"audit":     {"audit.html", "audit", "Audit log", h.audit},
		"changed":   {"changed.html", "audit", "Changed messages", h.changed},
		"outbox":    {"outbox.html", "outbox", "Outbox", h.outbox},
		"consumers": {"consumers.html", "consumers", "Consumers", h.consumers},
		"processes": {"processes.html", "processes", "Processes", h.processes},
		"check":     {"check.html", "check", "Check", h.check},
	}
	h.files = map[string]file{"audit.csv": h.auditFile, "changed.csv": h.changedFile}
	h.actions = map[string]action{
		"message-retry":    {do: h.retryMessage},
		"message-discard":  {do: h.discardMessage},
		"message-replace":  {do: h.replacePayload, limit: 7 * maxShown}, // a line end takes six bytes in a form
		"message-reveal":   {do: h.revealMessage},
		"message-result":   {do: h.revealResult},
		"failure-retry":    {do: h.retryGroup},
		"failure-discard":  {do: h.discardGroup},
		"aggregate-set":    {do: h.setVersion},
		"consumers-pause":  {do: h.pauseConsumer},
		"consumers-resume": {do: h.resumeConsumer},
		"outbox-retry":     {do: h.retryParked},
		"outbox-discard":   {do: h.discardParked},
	}
	for name := range choices {
		h.actions[name] = action{do: h.choose}
	}
	return h, nil
}

// patience limits how long a page may wait for the database. An action on many may take [Config.Budget] more.
const patience = 15 * time.Second

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, found := h.local(r)
	if !found {
		protect(w.Header())
		redirectInside(w, r)
		return
	}
	h.serve(w, r, path, "")
}

// serve serves a page of the dashboard, which may be that of one database of several.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, path, database string) {
	protect(w.Header())
	most := patience
	if _, long := h.files[path]; long {
		most = filePatience
	}
	if r.Method == http.MethodPost {
		most = max(most, most+h.config.Budget) // which is unbounded
	}
	ctx, cancel := context.WithTimeout(r.Context(), most)
	defer cancel()
	long := len(r.URL.Path)+len(r.URL.RawQuery) > maxAddress
	if long {
		path = "" // otherwise every link would be as long
	}
	v := h.visit(r.WithContext(ctx), path)
	v.Database = database
	if long {
		h.fail(w, v, problem{http.StatusRequestURITooLong, "This address is too long."})
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		h.get(w, v)
	case http.MethodPost:
		h.post(w, v)
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		h.fail(w, v, problem{http.StatusMethodNotAllowed, "This method is not allowed here."})
	}
}

func (h *Handler) get(w http.ResponseWriter, v *visit) {
	if a, ok := assets[v.path]; ok {
		a.serve(w, v.r)
		return
	}
	if f, ok := h.files[v.path]; ok {
		h.download(w, v, f)
		return
	}
	p, ok := h.pages[v.path]
	if !ok {
		h.fail(w, v, problem{http.StatusNotFound, "There is no such page."})
		return
	}
	h.show(w, v, p, http.StatusOK)
}

// show renders a page.
func (h *Handler) show(w http.ResponseWriter, v *visit, p page, status int) {
	v.Tab, v.Title = p.tab, p.title
	data, err := p.gather(v)
	if err != nil {
		h.fail(w, v, err)
		return
	}
	v.Data = data
	h.render(w, v, p.template, status)
}
