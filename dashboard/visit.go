package dashboard

import (
	"math"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/millrace/inbox/admin"
)

// visit is one request, and what every page shows.
type visit struct {
	r    *http.Request
	path string // within the dashboard: "inbox", "message-retry"

	Root     string // path from this page to the first
	System   system
	Database string // its name, if there are several
	All      bool   // it is about all of them
	Tab      string
	Title    string
	Operator string // who is signed in
	Acting   bool   // may change something
	Outbox   bool
	Done     string // what the last action did
	Now      time.Time
	Data     any
}

func (h *Handler) visit(r *http.Request, local string) *visit {
	v := &visit{r: r, path: local, Now: time.Now().UTC(), Outbox: h.config.Outbox != nil, System: h.config.system()}
	v.Root = "./" + strings.Repeat("../", strings.Count(local, "/"))
	if h.config.Operator != nil {
		v.Operator = h.config.Operator(r)
	}
	v.Acting = !h.config.ReadOnly && v.Operator != ""
	return v
}

// Where says which system it is: by the names that it was given, and its database.
func (v *visit) Where() string {
	names := slices.DeleteFunc([]string{v.System.Title, v.Database, v.System.Place}, func(s string) bool { return s == "" })
	return strings.Join(names, " · ")
}

// local returns the path of r within the dashboard. found is false if r lacks the slash after the
// prefix, on which the links of the first page depend.
func (h *Handler) local(r *http.Request) (local string, found bool) {
	prefix := h.config.Prefix
	if prefix == "" {
		prefix = prefixOf(r)
	}
	return localPath(r, prefix)
}

// prefixOf returns the path of the pattern that serves r, or "" if http.StripPrefix has taken it away: a page below
// may have the same name.
func prefixOf(r *http.Request) string {
	prefix := mounted(r.Pattern)
	asked, err := url.ParseRequestURI(r.RequestURI)
	if prefix != "" && err == nil && strings.HasSuffix(asked.Path, prefix+r.URL.Path) {
		return ""
	}
	return prefix
}

func localPath(r *http.Request, prefix string) (local string, found bool) {
	rest := r.URL.Path
	if after, under := strings.CutPrefix(rest, prefix); under && (after == "" || after[0] == '/') {
		rest = after
	}
	if rest == "" {
		return "", false
	}
	return rest[1:], rest[0] == '/'
}

// mounted returns the path of a pattern that matches everything below it.
func mounted(pattern string) string {
	slash := strings.Index(pattern, "/")
	if slash < 0 {
		return ""
	}
	prefix, rest, _ := strings.Cut(pattern[slash:], "{")
	if !strings.HasSuffix(prefix, "/") || rest != "" && !strings.HasSuffix(rest, "...}") {
		return ""
	}
	return strings.TrimSuffix(prefix, "/")
}

// redirectInside adds the slash. Its target names no host and no folder, so it cannot lead
// elsewhere.
func redirectInside(w http.ResponseWriter, r *http.Request) {
	asked, _, _ := strings.Cut(r.RequestURI, "?")
	to := "./" + path.Base(asked) + "/"
	if r.URL.RawQuery != "" {
		to += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusPermanentRedirect)
}

// query returns a value of the address.
func (v *visit) query(name string) string { return v.r.URL.Query().Get(name) }

// number returns a non-negative whole number from the address.
func (v *visit) number(name string) (int64, error) { return number(v.query(name), name) }

func number(text, name string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, problem{http.StatusBadRequest, "This is not a valid " + name + ": " + text}
	}
	return n, nil
}

// epoch returns the epoch that a form or an address names.
func epoch(text string) (int, error) {
	n, err := number(text, "epoch")
	if err == nil && n > math.MaxInt32 { // no table has such
		err = problem{http.StatusBadRequest, "This is not a valid epoch: " + text}
	}
	return int(n), err
}

// field returns a value of a form that act made.
func (v *visit) field(name string) string {
	text := v.r.PostFormValue(name)
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}

// operator returns who acts, and why.
func (v *visit) operator() admin.Operator {
	return admin.Operator{Name: v.Operator, Reason: v.reason()}
}

func (v *visit) reason() string { return strings.TrimSpace(v.r.PostFormValue("reason")) }

// link returns an address within the dashboard, relative to its first page, without empty values.
func link(page string, pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	if len(values) == 0 {
		return page
	}
	return page + "?" + values.Encode()
}
