package dashboard_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// pages are all that can be asked for; every rule is held to each.
var pages = []string{
	"", "?consumer=billing&window=24h", "inbox", "inbox?status=failed_terminal&consumer=billing", "message?key=order-0001",
	"message?key=nobody", "failures?sort=last", "waiting", "aggregate?consumer=billing&aggregate=order-7", "outbox", "consumers", "processes", "processes?name=web-1", "audit", "check",
	"inbox?sort=-stored", "?sort=-stuck",
}

// actions are all that change something.
var actions = []string{
	"message-retry", "message-discard", "message-replace", "message-reveal", "message-result", "failure-retry", "failure-discard",
	"aggregate-set", "consumers-pause", "consumers-resume", "outbox-retry", "outbox-discard", "messages-retry", "messages-discard",
	"parked-retry", "parked-discard", "outcomes-redispatch", "gaps-skip",
}

// TestNoActionIsLeftOut: whoever adds one has it refused by the rules, too.
func TestNoActionIsLeftOut(t *testing.T) {
	var known []string
	for file, name := range map[string]string{"handler.go": `"([a-z-]+)": +\{do: `, "choose.go": `\tAction: "([a-z-]+)"`} {
		source, err := os.ReadFile("../../dashboard/" + file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(name).FindAllStringSubmatch(string(source), -1) {
			known = append(known, found[1])
		}
	}
	assert.ElementsMatch(t, actions, known)
}

// attempt is a form with all that any action asks for.
func attempt(b *bed, action string) *http.Request {
	b.Helper()
	m := b.only()
	return stuck.Form(action, "id", "1", "key", m.MessageID, "group", b.group("account"), "until", "9000000000000000", "of", "1",
		"consumer", consumer, "epoch", "0", "reason", "because", "chosen", "1", "sure", "yes", "aggregate", "order-7", "version", "3",
		"known", "false", "payload", "{}")
}

// untouched asserts that nothing was changed.
func (b *bed) untouched() {
	b.Helper()
	assert.Zero(b, b.Count(`SELECT COUNT(*) FROM millrace_audit`))
	assert.Equal(b, 1, b.Count(`SELECT COUNT(*) FROM millrace_messages WHERE status IN (5, 6)`))
	assert.Zero(b, b.Count(`SELECT COUNT(*) FROM millrace_consumers WHERE paused <> ?`, false))
	assert.Zero(b, b.Count(`SELECT COUNT(*) FROM millrace_versions`))
}

// TestActionsAreRefused: each of them, whatever is wrong with the request.
func TestActionsAreRefused(t *testing.T) {
	b := one(t, testdb.On(t, "sqlite"))
	nobody := func(c *dashboard.Config) { c.Operator = func(*http.Request) string { return "" } }
	none := func(c *dashboard.Config) { c.Operator = nil }
	for _, c := range []struct {
		name   string
		config func(*dashboard.Config)
		spoil  func(*http.Request)
		status int
		why    string
	}{
		{"from another site", nil, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusForbidden, "another site"},
		{"from another site of the domain", nil, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, http.StatusForbidden, "another site"},
		{"from another origin", nil, func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "https://evil.example")
		}, http.StatusForbidden, "another site"},
		{"from a sandbox", nil, func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "null")
		}, http.StatusForbidden, "another site"},
		{"read-only", readOnly, nil, http.StatusForbidden, "read-only"},
		{"nobody signed in", nobody, nil, http.StatusForbidden, "Nobody is signed in"},
		{"no operators", none, nil, http.StatusForbidden, "Nobody is signed in"},
		{"no reason", nil, func(r *http.Request) { body(r, "id=1&key=order-0001&reason=%20") }, http.StatusUnprocessableEntity, "Say why"},
		{"a reason in the address", nil, func(r *http.Request) {
			r.URL.RawQuery = "reason=because"
			body(r, "id=1&key=order-0001")
		}, http.StatusUnprocessableEntity, "Say why"},
		{"a long reason", nil, func(r *http.Request) { body(r, "id=1&reason="+strings.Repeat("x", 501)) }, http.StatusUnprocessableEntity, "at most"},
		{"a large body", nil, func(r *http.Request) { body(r, "id=1&reason=x&more="+strings.Repeat("x", 1_000_000)) }, http.StatusRequestEntityTooLarge, "too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.pages = b.Dashboard()
			if c.config != nil {
				b.pages = b.Dashboard(c.config)
			}
			for _, action := range actions {
				r := attempt(b, action)
				if c.spoil != nil {
					c.spoil(r)
				}
				b.refused(b.send(r), c.status, c.why)
			}
			b.untouched()
		})
	}
}

func body(r *http.Request, text string) {
	with := httptest.NewRequest(http.MethodPost, r.URL.String(), strings.NewReader(text))
	r.Body, r.ContentLength = with.Body, with.ContentLength
}

func TestReadOnlyShowsNoActions(t *testing.T) {
	b := one(t, testdb.On(t, "sqlite"))
	forms := func() (n int) {
		for _, page := range append([]string{"failure?group=" + b.group("account")}, pages...) {
			n += strings.Count(b.get(page).text, `method="post"`)
		}
		return n
	}
	require.Positive(t, forms(), "an operator has some")
	b.pages = b.Dashboard(readOnly)
	assert.Zero(t, forms())
	b.shows(b.get(""), "read-only")
	b.pages = b.Dashboard(func(c *dashboard.Config) { c.Operator = nil })
	assert.Zero(t, forms())
	b.untouched()
}

// TestHostileTextIsShownAsText: all that comes from outside.
func TestHostileTextIsShownAsText(t *testing.T) {
	const script = `</textarea><script>alert(1)</script>"'><img src=x onerror=alert(1)>`
	db := testdb.On(t, "sqlite")
	b := &bed{stuck.New(t, db, inbox.Config{AllowPayloadChange: true}), nil}
	b.pages = b.Dashboard(func(c *dashboard.Config) { c.Operator = func(*http.Request) string { return script } })
	b.Serve(consumer)
	msg := stuck.Order(1, script)
	msg.UUID = script
	msg.Payload = []byte(script)
	msg.Metadata.Set(script, script)
	msg.Metadata.Set("name", script)
	b.Put(consumer, msg)
	b.AwaitStuck(1)
	b.DB.Do(t, `UPDATE millrace_messages SET topic = ?, reason = ?`, []byte(script), []byte(script))
	key := "message?key=" + strings.NewReplacer("<", "%3C", ">", "%3E", `"`, "%22", "'", "%27", " ", "%20", "/", "%2F").Replace(script)
	all := append([]string{key, "failure?group=" + b.group("</textarea>")}, pages...)
	check := func(a answer) {
		assert.NotContains(t, a.text, "<script>alert")
		assert.NotContains(t, a.text, "<img")
	}
	for _, page := range all {
		check(b.get(page))
	}
	b.shows(b.get(key), "&lt;/textarea&gt;&lt;script&gt;alert(1)&lt;/script&gt;")
	for _, hostile := range []string{"?consumer=<script>alert(1)</script>", "inbox?status=<script>", "?done=<script>alert(1)</script>", "inbox?topic=\"><script>alert(1)</script>", "audit?operator=\"><script>alert(1)</script>"} {
		r := httptest.NewRequest(http.MethodGet, stuck.Prefix+"/", nil)
		page, query, _ := strings.Cut(hostile, "?")
		r.URL.Path, r.URL.RawQuery = stuck.Prefix+"/"+page, query
		check(b.send(r))
	}
	page := b.get(key)
	shown := b.post("message-reveal", append(b.fields(page, "message-reveal"), "reason", script)...)
	check(shown)
	b.shows(shown, "<textarea", "&lt;script&gt;alert(1)&lt;/script&gt;")
	check(b.choose(b.get("inbox"), "messages-retry", script))
	check(b.get("aggregate?consumer=billing&aggregate=%3Cscript%3Ealert(1)%3C/script%3E"))
	check(b.get("audit"))
	b.shows(b.get("audit"), "&lt;script&gt;")
}

func TestEveryAnswerIsProtected(t *testing.T) {
	b := one(t, testdb.On(t, "sqlite"))
	for _, page := range append([]string{"nowhere", "deep/nowhere"}, pages...) {
		a := b.get(page)
		policy := a.Header.Get("Content-Security-Policy")
		assert.Contains(t, policy, "default-src 'none'", page)
		assert.NotContains(t, policy, "unsafe", page)
		assert.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"))
		assert.Equal(t, "no-store", a.Header.Get("Cache-Control"))
		assert.NotContains(t, a.text, " style=", page)
		assert.NotContains(t, a.text, "https://", page)
		assert.NotContains(t, a.text, "http://", page)
		for _, inline := range []string{" onclick=", " onsubmit=", "<style", "<script>"} {
			assert.NotContains(t, a.text, inline, page)
		}
	}
}

// TestTheIconIsAllowed: a browser asks for it on each page, and logs an error if the policy refuses it.
func TestTheIconIsAllowed(t *testing.T) {
	b := newBed(t, testdb.On(t, "sqlite"))
	page := b.get("inbox")
	icon := regexp.MustCompile(`<link rel="icon"[^>]* href="([^"]+)"`).FindStringSubmatch(page.text)
	require.NotNil(t, icon)
	assert.NotContains(t, icon[1], ":", "it is a file of this site")
	a := b.get(strings.TrimPrefix(icon[1], "./"))
	assert.Equal(t, http.StatusOK, a.StatusCode)
	assert.Equal(t, "image/svg+xml", a.Header.Get("Content-Type"))
}

func TestRequestsAreBounded(t *testing.T) {
	b := one(t, testdb.On(t, "sqlite"))
	b.refused(b.get("inbox?topic="+strings.Repeat("x", 9000)), http.StatusRequestURITooLong, "too long")
	deep := b.get(strings.Repeat("x/", 5000))
	b.refused(deep, http.StatusRequestURITooLong, "too long")
	assert.Less(t, len(deep.text), 8000, "links do not grow with the address")
	b.refused(b.get("nowhere"), http.StatusNotFound, "no such page")
	b.refused(b.post("nowhere"), http.StatusNotFound, "no such action")
	b.refused(b.get("inbox?status=lost"), http.StatusBadRequest, "no state named")
	b.refused(b.get("inbox?after=x"), http.StatusBadRequest, "not a valid after")
	b.refused(b.get("inbox?since=yesterday"), http.StatusBadRequest, "no date")
	b.refused(b.get("message"), http.StatusBadRequest, "Which message")
	b.refused(b.get("failure?group=42"), http.StatusNotFound, "No message fails like this any more")
	b.refused(b.send(httptest.NewRequest(http.MethodDelete, stuck.Prefix+"/inbox", nil)), http.StatusMethodNotAllowed, "method")
	b.refused(b.post("message-retry", "reason", "x"), http.StatusBadRequest, "no row")
	b.refused(b.post("failure-retry", "reason", "x"), http.StatusBadRequest, "does not name the messages")
	b.refused(b.post("failure-retry", "reason", "x", "group", "x"), http.StatusBadRequest, "not a valid group")
	b.refused(b.get("inbox?sort=payload"), http.StatusBadRequest, "cannot be sorted by payload")
	b.refused(b.get("aggregate"), http.StatusBadRequest, "Which aggregate")
	b.refused(b.get("aggregate?consumer=nobody&aggregate=x"), http.StatusNotFound, "no such consumer")
	b.refused(b.post("aggregate-set", "reason", "x", "consumer", consumer, "aggregate", "x", "version", "-1"), http.StatusUnprocessableEntity, "Which version")
	b.refused(b.post("messages-retry", "reason", "x"), http.StatusUnprocessableEntity, "None is chosen")
	b.refused(b.post("messages-retry", "reason", "x", "chosen", "x"), http.StatusBadRequest, "not a valid row")
	b.refused(b.post("messages-retry", append([]string{"reason", "x"}, strings.Split(strings.Repeat("chosen,1,", 51)+"sure,yes", ",")...)...),
		http.StatusBadRequest, "At most 50")
	for _, row := range []string{"x", "%zz/0/x", "billing/0/x/1/2", "billing/x/y"} {
		b.refused(b.post("gaps-skip", "reason", "x", "chosen", row), http.StatusBadRequest, "not a ")
	}
	b.untouched()
}

// TestPayloadsStayInside: no page, address or log has one unless it was asked for.
func TestPayloadsStayInside(t *testing.T) {
	b := one(t, testdb.On(t, "sqlite"))
	all := append([]string{"failure?group=" + b.group("account")}, pages...)
	for _, page := range all {
		assert.NotContains(t, b.get(page).text, "A-7", page)
	}
	require.NoError(t, b.DB.Close())
	b.pages = b.Dashboard() // which remembers nothing
	for _, page := range all {
		assert.NotEqual(t, http.StatusOK, b.get(page).StatusCode, page)
	}
	logs := strings.Join(b.Log.Logs(), "\n")
	assert.Contains(t, logs, "dashboard: a request failed")
	assert.NotContains(t, logs, "A-7")
	assert.NotContains(t, logs, "key=", "addresses are logged without their queries")
}
