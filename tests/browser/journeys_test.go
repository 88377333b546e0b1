package browser_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// on runs a journey with JavaScript, without it, and on a phone.
func on(t *testing.T, journey func(t *testing.T, b *browser)) {
	screens := map[string]screen{"with scripts": desk, "without scripts": bare, "on a phone": phone}
	for _, name := range testdb.Sample(t, 1, slices.Sorted(maps.Keys(screens))) {
		t.Run(name, func(t *testing.T) { journey(t, open(t, screens[name])) })
	}
}

func TestFindReadRetryAndSeeCompleted(t *testing.T) {
	testdb.Turn(t, 3, longest)
	on(t, func(t *testing.T, b *browser) {
		s := newService(t)
		s.fail(3)
		b.visit(s.home)
		b.reads("Wait for an operator", "billing")
		b.follow("Inbox")
		b.press(`//nav[@aria-label="States"]//a[contains(., "failed terminal")]`)
		b.follow("order-0002")
		b.reads("account 2 has no owner", "stored", "from topic orders", "7f3c-0002", "now failed terminal")
		b.lacks("c-2", "A-7")

		assert.EqualValues(t, http.StatusOK, b.act("Show the payload", "which customer?"))
		b.reads(`"customer": "c-2"`, "JSON")
		b.visit(s.home + "message?key=order-0002")

		s.Mended.Store(true)
		b.act("Retry", "the owner was added")
		b.reads("The message will be handled again.")
		s.Await(2, `SELECT COUNT(*) FROM millrace_messages`)
		b.visit(s.home + "message?key=order-0002")
		b.reads("completed", "retry by ada", "the owner was added", "reveal by ada", "invoice-of-order-0002")
		b.follow("Audit")
		b.reads("which customer?", "the owner was added")
	})
}

func TestRetryALargeGroup(t *testing.T) {
	testdb.Turn(t, 3, longest)
	n, shown := 300, "300"
	if testdb.Long() {
		n, shown = 1000, "1,000"
	}
	for _, name := range testdb.Sample(t, 1, []string{"with scripts", "without scripts"}) {
		t.Run(name, func(t *testing.T) {
			on := desk
			if name == "without scripts" {
				on = bare
			}
			b := open(t, on)
			s := newService(t, func(c *dashboard.Config) { c.Budget = 1 }) // a batch for each request
			s.fail(n)
			s.Mended.Store(true)
			b.visit(s.home + "failures")
			b.press(`//td//a[contains(., "has no owner")]`)
			b.reads(shown+" messages fail the same way", "makes them due")
			b.act("Retry", "owners were added")
			if name == "without scripts" {
				for range n/100 - 1 {
					b.reads("of " + shown + " messages done")
					b.press(`//button[.="Continue"]`)
				}
				b.press(`//button[.="Continue"]`)
			} else {
				b.do(chromedp.WaitVisible(chromedp.CSS("p.done")))
			}
			b.reads(shown + " messages will be handled again.")
			s.handled()
			rig.Eventually(b, "nothing fails", func() bool { // the page may show what was counted before the last was handled
				b.visit(s.home + "failures")
				return strings.Contains(get(b, chromedp.Text(chromedp.CSS("body"))), "Nothing fails")
			})
			assert.Equal(t, n, s.Audited("retry", "owners were added"))
		})
	}
}

func TestDiscardWithAReason(t *testing.T) {
	on(t, func(t *testing.T, b *browser) {
		s := newService(t)
		s.fail(1)
		b.visit(s.home + "message?key=order-0001")
		b.act("Discard", "a test order")
		b.reads("The message was discarded", "discarded", "a test order")
		s.handled()
		assert.Equal(t, 1, s.Audited("discard", "a test order"))
	})
}

func TestDiscardWhatIsTicked(t *testing.T) {
	on(t, func(t *testing.T, b *browser) {
		s := newService(t)
		s.fail(3)
		b.visit(s.home + "inbox")
		b.do(chromedp.Click(`//input[@aria-label="Choose order-0001"]`), chromedp.Click(`//input[@aria-label="Choose order-0002"]`))
		b.do(chromedp.Click(`//summary[starts-with(., "With the chosen")]`), chromedp.SendKeys(`//details[@open]//input[@name="reason"]`, "test orders"))
		b.press(`//button[.="Discard…"]`)
		b.reads("Discard 2 messages?", "order-0001", "Reason: test orders")
		b.press(`//button[.="Discard 2 messages"]`)
		b.reads("2 messages were discarded")
		s.AwaitStuck(1)
		assert.Equal(t, 2, s.Audited("discard", "test orders"))
	})
}

// TestAReasonIsNeeded: the browser asks for one, before the server does.
func TestAReasonIsNeeded(t *testing.T) {
	s := newService(t)
	s.fail(1)
	b := open(t, desk)
	b.visit(s.home + "message?key=order-0001")
	form := `//details[summary[starts-with(., "Discard")]]`
	b.do(chromedp.Click(form+`/summary`), chromedp.Click(form+`//button`))
	assert.True(t, get(b, chromedp.Evaluate[bool](`document.querySelector("details[open] input:invalid") !== null`)))
	s.AwaitStuck(1)
}

func TestPauseAndResume(t *testing.T) {
	on(t, func(t *testing.T, b *browser) {
		s := newService(t)
		s.fail(1)
		b.visit(s.home + "consumers")
		b.reads("delivers", "7 days")
		b.act("Pause", "the bank is down")
		b.reads("The consumer is paused", "paused")
		s.Await(1, `SELECT COUNT(*) FROM millrace_consumers WHERE paused`)
		b.act("Resume", "it is back")
		b.reads("The consumer is no longer paused.", "delivers")
		s.Await(0, `SELECT COUNT(*) FROM millrace_consumers WHERE paused`)
	})
}

func TestReadOnlyShowsNoActionsAndRefusesThem(t *testing.T) {
	s := newService(t, func(c *dashboard.Config) { c.ReadOnly = true })
	s.fail(1)
	b := open(t, desk)
	for _, page := range []string{"", "message?key=order-0001", "failures", "consumers", "outbox"} {
		b.visit(s.home + page)
		assert.False(t, b.shown(`method="post"`), page)
		b.reads("read-only")
	}
	answer := get(b, chromedp.Evaluate[int](
		`fetch("message-discard", {method: "POST", body: new URLSearchParams({id: "1", reason: "x"})}).then(a => a.status)`, chromedp.EvalAwaitPromise))
	assert.Equal(t, http.StatusForbidden, answer)
	s.AwaitStuck(1)
}

// TestAnotherSiteCannotAct: a page of another site has the browser send a form, as it would
// with the cookies of whoever is signed in.
func TestAnotherSiteCannotAct(t *testing.T) {
	s := newService(t)
	s.fail(1)
	own, err := url.Parse(s.home)
	require.NoError(t, err)
	for name, home := range map[string]string{"another site": "http://localhost:" + own.Port() + own.Path, "another port": s.home} {
		t.Run(name, func(t *testing.T) {
			evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				_, _ = w.Write([]byte(`<form method="post" action="` + home + `message-discard"><input name="id" value="1">` +
					`<input name="key" value="order-0001"><input name="reason" value="evil"><button>Win</button></form>`))
			}))
			defer evil.Close()
			b := open(t, desk)
			b.visit(evil.URL)
			assert.EqualValues(t, http.StatusForbidden, b.press(`//button`))
			b.reads("came from another site")
			s.AwaitStuck(1)
		})
	}
}

func TestScriptsAreShownAsText(t *testing.T) {
	testdb.Turn(t, 3, longest)
	const script = `<script>document.title="owned"</script><img src=x onerror='document.title="owned"'>`
	s := newService(t)
	s.Serve(consumer)
	msg := stuck.Order(1, script)
	msg.Payload = []byte(script)
	msg.Metadata.Set(script, script)
	msg.Metadata.Set("name", script)
	s.Put(consumer, msg)
	s.AwaitStuck(1)
	s.DB.Do(t, `UPDATE millrace_messages SET topic = ?`, []byte(script))
	b := open(t, desk)
	for _, page := range []string{"inbox", "failures", "message?key=order-0001"} {
		b.visit(s.home + page)
		b.reads("<script>document.title=")
		assert.NotEqual(t, "owned", get(b, chromedp.Title()), page)
	}
	b.act("Show the payload", script)
	b.reads("<script>document.title=")
	assert.NotEqual(t, "owned", get(b, chromedp.Title()))
	assert.Zero(t, get(b, chromedp.Evaluate[int](`document.querySelectorAll("main script, main img").length`)))
	b.visit(s.home + "audit")
	b.reads("<script>document.title=")
}

// TestThePolicyStopsInlineScripts: also what would get past the escaping does not run.
func TestThePolicyStopsInlineScripts(t *testing.T) {
	s := newService(t)
	b := open(t, desk)
	b.visit(s.home)
	title := get(b, chromedp.Evaluate[string](`(() => { const s = document.createElement("script"); s.textContent = "document.title = 'owned'";
		document.body.append(s); return document.title })()`))
	assert.NotEqual(t, "owned", title)
}

// TestPagesFollowWhatHappens: without a reload, but not under the hands of who writes.
func TestPagesFollowWhatHappens(t *testing.T) {
	testdb.Turn(t, 3, longest)
	s := newService(t)
	s.fail(2)
	b := open(t, desk)
	b.visit(s.home + "message?key=order-0001")
	b.do(chromedp.Click(`//summary[starts-with(., "Discard")]`))
	b.visit(s.home + "inbox")
	b.do(chromedp.Click(`//input[@aria-label="Choose all of the page"]`))
	s.Put(consumer, stuck.Order(9, "account 9 has no owner"))
	s.AwaitStuck(3)
	assert.Equal(t, 2, get(b, chromedp.Evaluate[int](
		`document.activeElement.blur(); refresh().then(() => document.querySelectorAll("input[name=chosen]:checked").length)`, chromedp.EvalAwaitPromise)))
	b.visit(s.home + "failures")
	b.reads("account ? has no owner")
	s.Mended.Store(true)
	other := open(t, bare)
	other.visit(s.home + "failures")
	other.press(`//td//a`)
	other.act("Retry", "mended")
	s.handled()
	b.do(chromedp.WaitVisible(chromedp.CSS("#groups .empty")))

	b.visit(s.home + "consumers")
	b.do(chromedp.Click(`//summary[starts-with(., "Pause")]`), chromedp.SendKeys(`//input[@name="reason"]`, "half a rea"))
	get(b, chromedp.Evaluate[bool](`refresh().then(() => true)`, chromedp.EvalAwaitPromise))
	assert.Equal(t, "half a rea", get(b, chromedp.Value(`//details[@open]//input[@name="reason"]`)))
}

// TestTimesAreInTheReadersZone: with the exact time in UTC behind them.
func TestTimesAreInTheReadersZone(t *testing.T) {
	s := newService(t)
	s.fail(1)
	_, err := s.DB.ExecContext(t.Context(), `UPDATE millrace_messages SET received_at = 1767268800123456`) // 2026-01-01 12:00 UTC
	require.NoError(t, err)
	b := open(t, desk)
	b.visit(s.home + "inbox")
	b.reads("13:00:00")
	assert.True(t, b.shown(`title="2026-01-01 12:00:00.123456 UTC"`))
	b = open(t, bare)
	b.visit(s.home + "inbox")
	b.reads("12:00:00 UTC")
}

// TestAPhoneNeedsNoSidewaysScrolling: no page is wider than the screen.
func TestAPhoneNeedsNoSidewaysScrolling(t *testing.T) {
	testdb.Turn(t, 3, longest)
	s := newService(t, named)
	s.fail(3)
	s.Put("a-consumer-with-a-very-long-name-that-does-not-end-soon", stuck.Order(7, ""))
	b := open(t, phone)
	for _, page := range pages {
		b.visit(s.home + page)
		assert.LessOrEqual(t, get(b, chromedp.Evaluate[int](`document.documentElement.scrollWidth`)), 390, page)
	}
}

// TestKeysAreEnough: what is open can be tried again without a pointer.
func TestKeysAreEnough(t *testing.T) {
	s := newService(t)
	s.fail(1)
	s.Mended.Store(true)
	b := open(t, desk)
	b.visit(s.home + "message?key=order-0001")
	b.do(chromedp.KeyEvent("\t"))
	assert.Equal(t, "Skip to the content", get(b, chromedp.Evaluate[string](`document.activeElement.textContent`)))
	b.do(chromedp.Focus(`//summary[starts-with(., "Retry")]`), chromedp.KeyEvent("\r"))
	b.do(chromedp.WaitVisible(chromedp.CSS(`details[open] input[name="reason"]:focus`))) // else keys go elsewhere
	_, err := chromedp.RunResponse(b.step(), chromedp.KeyEvent("by keys alone"), chromedp.KeyEvent("\r"))
	require.NoError(t, err)
	b.reads("will be handled again")
	assert.Equal(t, 1, s.Audited("retry", "by keys alone"))
}

// pages are all that a browser can open, of a service that failed.
var pages = []string{
	"", "inbox", "inbox?status=failed_terminal&consumer=billing", "message?key=order-0001", "message?key=nobody", "failures",
	"waiting", "outbox", "consumers", "processes", "audit?operator=ada", "check", "nowhere", "aggregate?consumer=projection&aggregate=order-7",
}
