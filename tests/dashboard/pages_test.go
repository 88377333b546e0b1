package dashboard_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
	millrace "github.com/millrace-go/millrace/middleware"
	"github.com/millrace-go/millrace/outbox"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

func TestPagesShowWhatIsThere(t *testing.T) {
	testdb.Conformance(t, pageBodies)
}

var pageBodies = []testdb.Body{
	{Name: "empty tables", Why: "every page says what it means that nothing is there", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		for page, text := range map[string]string{
			"": "No consumer has handled", "inbox": "Nothing is open", "inbox?status=parked": "No message is in this state",
			"inbox?topic=x": "No open message matches", "message?key=x": "Nothing is known", "failures": "Nothing fails",
			"waiting": "No aggregate waits", "outbox": "No message was given up", "consumers": "No consumer is known",
			"audit": "There are no entries yet", "processes": "No process is listed", "processes?name=x": "No process of this name is listed",
		} {
			b.shows(b.get(page), text, `class="empty`)
		}
		b.shows(b.get("check"), "Check")
		b.shows(b.get(""), `<p class="well">Nothing is wrong.</p>`)
	}},
	{Name: "problems", Why: "the first page begins with what is wrong, worst first, and leads to what helps", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Serve(consumer)
		b.Put(consumer, stuck.Order(1, "no owner"), stuck.Order(2, "no owner"))
		b.AwaitStuck(2)
		require.NoError(t, b.Outbox.Publish("invoices", message.NewMessage("i-1", nil)))
		db.Do(t, `INSERT INTO millrace_outbox_layout (id, generation, shards, target) VALUES (1, 1, 64, 64)`)
		db.Do(t, `INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (7, 'killed', 1, ?)`, time.Now().Add(-time.Hour).UnixMicro())
		b.done(b.post("consumers-pause", "id", "0", "consumer", consumer, "epoch", "0", "reason", "the bank is down"))
		page := b.get("")
		b.shows(page)
		section := regexp.MustCompile(`(?s)<section id="problems".*?</section>`).FindString(page.text)
		assert.Regexp(t, `(?s)bad">no relay runs.*<td class="n">1</td><td class="n nowrap">1 h.*bad">billing: no owner.*<td class="n">2</td>.*warn">billing: paused by ada: the bank is down`, section)
		links := regexp.MustCompile(`<a href="([^"#]*)`).FindAllStringSubmatch(section, -1)
		assert.Len(t, links, 3)
		for _, to := range links {
			b.shows(b.get(strings.ReplaceAll(to[1], "&amp;", "&")))
		}
		b.done(b.post("consumers-resume", "id", "0", "consumer", consumer, "epoch", "0", "reason", "it is back"))
		assert.NotContains(t, b.get("").text, "paused by", "it does not show what was before the action")
	}},
	{Name: "tables that are missing", Why: "what is there is shown, with what is missing above it", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Put(consumer, stuck.Order(1, ""))
		db.DropViews(t)
		db.Do(t, `DROP TABLE millrace_outbox_relays`)
		db.Do(t, `DROP TABLE millrace_steps`)
		db.Do(t, `INSERT INTO millrace_outbox_layout (id, generation, shards, target) VALUES (1, 1, 64, 64)`)
		page := b.get("")
		b.shows(page, "outbox: shards: a table is missing", "look for steps in doubt", `<a href="check">`, "By consumer", "billing")
		require.NoError(t, db.Close())
		b.refused(b.get(""), http.StatusServiceUnavailable, "The database is out: nothing can be shown or done here. It last answered this page ")
	}},
	{Name: "figures of the overview", Why: "how much there is, and how it went, by consumer", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Serve(consumer)
		b.Serve("shipping")
		b.Put(consumer, stuck.Order(1, "no owner"), stuck.Order(2, "no owner"), stuck.Order(3, ""))
		b.Put("shipping", stuck.Order(1, ""))
		b.AwaitStuck(2)
		b.act(consumer, 90, 12)
		page := b.get("")
		b.shows(page, "Wait for an operator", "billing", "shipping", "Handled per minute", "Failed per minute", "<svg", "Figures")
		assert.Regexp(t, `<dt>Wait for an operator</dt><dd><a href="[^"]*">2</a>`, page.text)
		assert.Regexp(t, `(?s)billing.*<td class="n wide">90</td><td class="n wide">12</td>`, page.text)
		b.shows(b.get("?consumer=shipping&window=6h"), "Overview of shipping")
	}},
	{Name: "processes", Why: "who serves what, in which version, who is silent; and nothing that a name contains is markup", Run: func(t *testing.T, db *testdb.DB) {
		service := stuck.New(t, db, inbox.Config{PurgeInterval: 100 * time.Millisecond})
		b := &bed{service, service.Dashboard()}
		b.Serve(consumer, millrace.VersionGate{}.Middleware)
		msg := stuck.Order(1, "")
		outbox.Stamp(msg, "order-7", 1)
		b.Put(consumer, msg)
		rig.Eventually(t, "it is listed", func() bool {
			return strings.Contains(b.get("processes").text,
				`<a href="inbox?consumer=billing">billing</a> <span class="pill">queue</span> <span class="pill">version gate</span>`)
		})
		b.shows(b.get("processes"), `good">runs`)
		db.Do(t, `INSERT INTO millrace_outbox_layout (id, generation, shards, target) VALUES (1, 1, 64, 64)`)
		db.Do(t, `INSERT INTO millrace_outbox_relays (token, name, started_at, until) VALUES (7, 'shop-1', 1, 1)`)
		odd := "<script>\x00\xff\u202e"
		for i := range 60 {
			db.Do(t, `INSERT INTO millrace_processes (namespace, name, token, host, pid, program, version, millrace, consumers, serves, started_at, seen_at)
				VALUES (?, ?, ?, ?, 1, ?, ?, ?, 40, ?, ?, ?)`, []byte{}, []byte(odd), i+1, []byte(odd), []byte(odd), []byte(odd), []byte(odd),
				[]byte(`[`+strings.Repeat(`{"consumer":"<script>","epoch":7,"handler":"\u0000<script>"},`, 34)+`{}]`), int64(math.MinInt64), int64(math.MaxInt64))
		}
		page := b.get("processes")
		b.shows(page, `bad">silent`, "10 more", "epoch 7", `rel="next"`, "shop-1", "lease ended")
		assert.NotContains(t, page.text, "<script>")
		assert.NotContains(t, page.text, "\u202e")
		next := regexp.MustCompile(`<a href="([^"]+)" rel="next"`).FindStringSubmatch(page.text)
		b.shows(b.get(strings.ReplaceAll(next[1], "&amp;", "&")), "First page")
		named := b.get("processes?name=" + url.QueryEscape(odd))
		b.shows(named, `bad">silent`, `rel="next"`)
		assert.NotContains(t, named.text, `good">runs`)
	}},
	{Name: "an imported message", Why: "nobody takes it for one that was handled here", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		_, err := admin.New(b.Store).Import(t.Context(), inbox.ConsumerConfig{Name: consumer}, func(yield func(admin.Imported, error) bool) {
			yield(admin.Imported{Key: []string{"order-7"}}, nil)
		}, admin.Operator{Name: "ada", Reason: "a table of our own"}, admin.Pace{})
		require.NoError(t, err)
		b.shows(b.get("message?key=order-7"), "imported", "handled by another system")
		b.shows(b.get("audit"), "import", "a table of our own")
	}},
	{Name: "pages of the inbox", Why: "each message is on one of them, and filters hold on all", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		var msgs []*message.Message
		for i := range 120 {
			msgs = append(msgs, stuck.Order(i, ""))
		}
		b.Put(consumer, msgs...)
		b.Put("shipping", stuck.Order(500, ""))
		key := regexp.MustCompile(`message\?key=(order-\d+)`)
		for _, order := range []string{"", "&sort=-stored"} {
			var seen []string
			page, n := "inbox?consumer=billing&topic=orders"+order, 0
			for ; page != ""; n++ {
				a := b.get(page)
				b.shows(a)
				for _, m := range key.FindAllStringSubmatch(a.text, -1) {
					seen = append(seen, m[1])
				}
				next := regexp.MustCompile(`<a href="([^"]+)" rel="next"`).FindStringSubmatch(a.text)
				if page = ""; next != nil {
					page = strings.ReplaceAll(next[1], "&amp;", "&")
				}
			}
			assert.Equal(t, 3, n)
			if order != "" {
				slices.Reverse(seen)
			}
			assert.True(t, slices.IsSorted(seen), "%q", seen)
			assert.Len(t, slices.Compact(seen), 120)
			assert.NotContains(t, seen, "order-0500")
		}
		future := time.Now().UTC().Add(48 * time.Hour).Format("2006-01-02T15:04")
		b.shows(b.get("inbox?since="+future), "No open message matches")
		b.shows(b.get("inbox?until="+future), "order-0000")
		b.shows(b.get("inbox?consumer=shipping"), "order-0500")
		b.shows(b.get("inbox?after=99999999"), "There are no more messages")
		for page, why := range map[string]string{
			"inbox?after=x": "not a valid after", "outbox?after=x": "not a valid after", "audit?before=x": "not a valid before",
			"waiting?after=x": "no such place", "waiting?after=AAAAAAAA": "no such place", "processes?after=x": "no such place",
		} {
			b.refused(b.get(page), http.StatusBadRequest, why)
		}
	}},
	{Name: "aggregates that wait", Why: "which version each waits for", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.Serve(consumer, millrace.VersionGate{}.Middleware)
		for _, version := range []int64{1, 2, 5, 6} {
			msg := stuck.Order(int(version), "")
			if version == 6 {
				msg.Metadata = message.Metadata{"ce_correlationid": "cart-6"}
			}
			outbox.Stamp(msg, "order-7", version)
			msg.Metadata.Set("ce_causationid", fmt.Sprint("command-", version))
			b.Put(consumer, msg)
		}
		b.Await(2, `SELECT COUNT(*) FROM millrace_messages`)
		b.Await(2, `SELECT COUNT(*) FROM millrace_messages WHERE status = 7`)
		page := b.get("waiting")
		b.shows(page, "order-7", "billing")
		assert.Regexp(t, `<b>3</b></td><td class="n wide">2</td><td class="n wide">5</td>`, page.text)
		b.shows(b.get("message?key=order-0005"), "order-7</a>, version 5", "now held",
			"<dt>Correlation id</dt><dd>7f3c-0005</dd>", "<dt>Causation id</dt><dd>command-5</dd>")
		b.shows(b.get("message?key=order-0006"), "<dt>Correlation id</dt><dd>cart-6</dd>")
	}},
	{Name: "findings", Why: "what Store.Check finds, with its remedy", Run: func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		b.DB.SetMaxOpenConns(0)
		found, err := b.Store.Check(t.Context())
		require.NoError(t, err)
		page := b.get("check")
		b.shows(page)
		assert.Equal(t, len(found), strings.Count(page.text, `class="remedy"`))
		db.Do(t, `DROP TABLE millrace_results`)
		b.pages = b.Dashboard()
		b.shows(b.get("check"), "millrace_results", "error")
	}},
}

// act notes what a consumer did in the last minutes.
func (b *bed) act(name string, completed, failed int) {
	b.Helper()
	b.DB.Do(b.T, `DELETE FROM millrace_activity`)
	minute := time.Now().Add(-5 * time.Minute).Truncate(time.Minute).UnixMicro()
	b.DB.Do(b.T, `
		INSERT INTO millrace_activity (minute, consumer, completed, failed, duplicates, stale, held, parked, handling_us)
		SELECT ?, id, ?, ?, 0, 0, 0, 0, 0 FROM millrace_consumers WHERE name = ?`, minute, completed, failed, []byte(name))
}

// TestThePrefixIsFound: however the handler is mounted, links lead to pages.
func TestThePrefixIsFound(t *testing.T) {
	s := stuck.New(t, testdb.On(t, "sqlite"))
	handler := func(prefix string) http.Handler {
		h, err := dashboard.New(s.Store, dashboard.Config{Prefix: prefix})
		require.NoError(t, err)
		return h
	}
	mux := func(pattern string, h http.Handler) http.Handler {
		m := http.NewServeMux()
		m.Handle(pattern, h)
		return m
	}
	for name, c := range map[string]struct {
		h    http.Handler
		home string
	}{
		"at the root":                    {handler(""), "/"},
		"a pattern":                      {mux("/a/b/", handler("")), "/a/b/"},
		"a pattern with a method":        {mux("GET /a/b/", handler("")), "/a/b/"},
		"a pattern with a rest":          {mux("/a/b/{rest...}", handler("")), "/a/b/"},
		"StripPrefix":                    {mux("/a/b/", http.StripPrefix("/a/b", handler(""))), "/a/b/"},
		"StripPrefix of a page's name":   {mux("/inbox/", http.StripPrefix("/inbox", handler(""))), "/inbox/"},
		"a pattern of a page's name":     {mux("/inbox/", handler("")), "/inbox/"},
		"Config.Prefix":                  {handler("/a/b"), "/a/b/"},
		"Config.Prefix with a slash":     {handler("/a/b/"), "/a/b/"},
		"Config.Prefix behind a pattern": {mux("/", handler("/a/b")), "/a/b/"},
		"a prefix that is also a page":   {handler("/inbox"), "/inbox/"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.h)
			defer server.Close()
			for page, title := range map[string]string{"": "Overview", "inbox": "Inbox", "failures": "Failures"} {
				text := fetch(t, server.URL+c.home+page)
				assert.Contains(t, text, "<title>"+title)
				for _, link := range regexp.MustCompile(`(?:href|src)="(\./[^"]*)"`).FindAllStringSubmatch(text, -1) {
					fetch(t, server.URL+c.home+strings.TrimPrefix(link[1], "./"))
				}
			}
			assert.Contains(t, fetch(t, server.URL+strings.TrimSuffix(c.home, "/")), "<title>Overview", "the slash is added")
		})
	}
}

func fetch(t *testing.T, address string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusOK, response.StatusCode, address)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(text)
}

// TestAFileHasTimeOfItsOwn: the timeout of a server is for pages.
func TestAFileHasTimeOfItsOwn(t *testing.T) {
	b := one(t, testdb.On(t, "sqlite"))
	b.done(b.post("consumers-pause", "id", "0", "consumer", consumer, "epoch", "0", "reason", "the bank is down"))
	server := httptest.NewUnstartedServer(b.pages)
	server.Config.WriteTimeout = time.Nanosecond
	server.Start()
	defer server.Close()
	assert.Contains(t, fetch(t, server.URL+stuck.Prefix+"/audit.csv"), "the bank is down")
}

// TestTheSlashLeadsNowhereElse: a redirect names no other host.
func TestTheSlashLeadsNowhereElse(t *testing.T) {
	s := stuck.New(t, testdb.On(t, "sqlite"))
	h, err := dashboard.New(s.Store, dashboard.Config{Prefix: "/ui"})
	require.NoError(t, err)
	for _, target := range []string{"/ui", "//evil.example/ui", "http://x/ui"} {
		r := httptest.NewRequest(http.MethodGet, "/ui", nil)
		r.RequestURI = target
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.Equal(t, "./ui/", w.Header().Get("Location"), target)
	}
}

// TestPagesSayWhichSystemItIs: in the head, in the title of the tab, and wherever something is about to be changed.
func TestPagesSayWhichSystemItIs(t *testing.T) {
	b := one(t, testdb.On(t, "sqlite"))
	b.pages = b.Dashboard(func(c *dashboard.Config) {
		c.Title, c.Color, c.Database = "shop, <live>", "red", "postgres://ada:hidden-password@db.internal/shop?password=hidden-password"
	})
	const where = "shop, &lt;live&gt; · ada@db.internal/shop"
	for _, page := range []string{"", "inbox", "consumers", "nowhere"} {
		text := b.get(page).text
		assert.Contains(t, text, " · "+where+" · Millrace</title>")
		assert.Contains(t, text, `<header class="top env red">`)
		assert.Contains(t, text, `<span class="system">shop, &lt;live&gt;</span><span class="place">ada@db.internal/shop</span>`)
		assert.NotContains(t, text, "hidden-password")
	}
	for _, page := range []answer{
		b.get("message?key=" + b.only().MessageID), b.get("inbox"), b.get("aggregate?consumer=billing&aggregate=order-7"),
		b.choose(b.get("inbox"), "messages-retry", "because"),
	} {
		assert.Positive(t, strings.Count(page.text, ` method="post"`))
		assert.Equal(t, strings.Count(page.text, ` method="post"`), strings.Count(page.text, "In "+where))
	}
}

// TestAnUnchangedPageIsNotSentAgain: the browser asks every few seconds.
func TestAnUnchangedPageIsNotSentAgain(t *testing.T) {
	b := one(t, testdb.On(t, "sqlite"))
	rig.Eventually(t, "it is not sent again", func() bool { // after a second it counts again
		tag := b.get("failures").Header.Get("ETag")
		require.NotEmpty(t, tag)
		r := httptest.NewRequest(http.MethodGet, stuck.Prefix+"/failures", nil)
		r.Header.Set("If-None-Match", tag)
		again := b.send(r)
		return again.StatusCode == http.StatusNotModified && assert.Empty(t, again.text)
	})
}

// TestTheBacklogIsSampled: Run fills the charts while nobody looks, and ends.
func TestTheBacklogIsSampled(t *testing.T) {
	s := stuck.New(t, testdb.On(t, "sqlite"))
	h, err := dashboard.New(s.Store, dashboard.Config{})
	require.NoError(t, err)
	s.Put(consumer, stuck.Order(1, ""))
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- h.Run(ctx) }()
	cancel()
	require.NoError(t, <-ended)
}

func TestConfigIsValidated(t *testing.T) {
	s := stuck.New(t, testdb.On(t, "sqlite"))
	_, err := dashboard.New(s.Store, dashboard.Config{Prefix: "ui", Budget: -1, Color: "#fff"})
	require.ErrorContains(t, err, `Color "#fff" is none of red, orange`)
	require.ErrorContains(t, err, "Prefix")
	require.ErrorContains(t, err, "Budget")
	_, err = dashboard.New(nil, dashboard.Config{})
	require.ErrorContains(t, err, "Store")
}
