package tests_test

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/stuck"
)

func byPages(n *night) {
	n.pages = n.Dashboard(func(c *dashboard.Config) { c.Title = "shop" })
	n.overview("Nothing is wrong", "the broker is out for relay shop-1", "no janitor")
	n.brokerIsBack()
	n.relayIsKilled()
	n.visit(n.overview("the broker is out", "no relay runs")["no relay runs"], "lease ended")
	n.relayIsStarted()
	wrong := n.overview("no relay runs", "billing: account ? has no owner", "projection: an earlier version is missing", "mail: same key", "shipping: paused")

	n.handlerIsMended()
	next := n.press(n.visit(wrong["billing: account"]), "failure-retry", "Retry 1,000 messages", "the accounts have owners")
	for strings.Contains(next, "data-continue") {
		next = n.answer(stuck.Form("failure-retry", stuck.Fields(n.T, next, "failure-retry")...))
	}
	n.tell(next)

	n.say("The projection can do without version 3: its producer says that there never was one.")
	gap := n.visit(n.find(n.visit(wrong["projection"]), `href="(aggregate\?[^"]*)"`), "version 3 is missing")
	n.tell(n.press(gap, "gaps-skip", "Skip the gap", "the producer skipped it"))

	n.say("It is another order, whose producer gave it a used id: it is to be handled as a message of its own.")
	collided := n.visit(wrong["mail"], "same key as message order-0001, other payload")
	n.tell(n.choose(collided, "messages-retry", "Retry", "another order under a used id"))

	n.tell(n.press(n.visit(wrong["shipping"], "paused"), "consumers-resume", "Resume", "the stock is taken"))
	n.say("The service is started with its plugin, whose janitor comes by at once.")
	n.janitor()
	n.mended()
	n.overview(`class="why`, "Nothing is wrong") // what was resumed may still wait
	n.visit("audit", "another order under a used id")
}

// janitor runs one until all consumers are purged.
func (n *night) janitor() {
	n.Helper()
	ctx, stop := context.WithCancel(n.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.Store.Run(ctx) }()
	n.Await(0, `SELECT COUNT(*) FROM millrace_consumers WHERE purged_at = 0`)
	stop()
	assert.NoError(n, <-ended)
}

// answer returns the page that comes of a request, where an action leads to, too.
func (n *night) answer(r *http.Request) string {
	n.Helper()
	for {
		w := httptest.NewRecorder()
		n.pages.ServeHTTP(w, r)
		if w.Code != http.StatusSeeOther {
			require.Equal(n, http.StatusOK, w.Code, w.Body)
			return w.Body.String()
		}
		r = httptest.NewRequest(http.MethodGet, stuck.Prefix+"/"+strings.TrimPrefix(w.Header().Get("Location"), "./"), nil)
	}
}

// visit returns a page, which shows these texts, and tells of it.
func (n *night) visit(page string, texts ...string) string {
	n.Helper()
	text := n.answer(httptest.NewRequest(http.MethodGet, stuck.Prefix+"/"+page, nil))
	title := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(n.find(text, `<h1>(.*)</h1>`), "")
	n.say("> **" + title + "**")
	for _, t := range texts {
		assert.Contains(n, text, t)
		n.told.WriteString(">\n> " + t + "\n")
	}
	return text
}

// overview tells what is wrong by the first page, once it no longer says what is over. It returns where the link of
// each problem leads.
func (n *night) overview(over string, problems ...string) map[string]string {
	n.Helper()
	section := ""
	rig.Eventually(n.T, "the first page says so no longer: "+over, func() bool {
		text := n.answer(httptest.NewRequest(http.MethodGet, stuck.Prefix+"/", nil))
		section = n.find(text, `(?s)<section id="problems"(.*?)</section>`)
		return !strings.Contains(section, over)
	})
	n.say("> **Overview**\n>")
	leads := map[string]string{}
	row := regexp.MustCompile(`<td class="why \w+">(.*?)</td><td class="n">(.*?)</td>.*?<a href="([^"]*)">([^<]*)`)
	for _, cells := range row.FindAllStringSubmatch(section, -1) {
		fmt.Fprintf(&n.told, "> - %s (%s) → *%s*\n", cells[1], cells[2], cells[4])
		for _, begin := range []string{"no relay runs", "billing: account", "projection", "mail", "shipping"} {
			if strings.HasPrefix(cells[1], begin) {
				leads[begin], _, _ = strings.Cut(html.UnescapeString(cells[3]), "#")
			}
		}
	}
	if strings.Contains(section, "Nothing is wrong") {
		n.told.WriteString("> Nothing is wrong.\n")
	}
	for _, p := range problems {
		assert.Contains(n, section, p)
	}
	return leads
}

// press sends the form behind a button.
func (n *night) press(page, action, button, reason string) string {
	n.Helper()
	assert.Contains(n, page, ">"+button+"…</summary>")
	fmt.Fprintf(&n.told, ">\n> [ %s ] because: %s\n", button, reason)
	return n.answer(stuck.Form(action, append(stuck.Fields(n.T, page, action), "reason", reason)...))
}

// choose ticks all boxes, presses a button below the list, and confirms.
func (n *night) choose(page, action, button, reason string) string {
	n.Helper()
	fields := []string{"reason", reason}
	for _, box := range stuck.Boxes(n.T, page) {
		n.told.WriteString(">\n> [x] the row\n")
		fields = append(fields, "chosen", box)
	}
	assert.Contains(n, page, ">"+button+"…</button>")
	fmt.Fprintf(&n.told, ">\n> [ %s… ] because: %s\n", button, reason)
	asked := n.answer(stuck.Form(action, fields...))
	confirm := n.find(asked, `<button class="\w*">(.*?)</button>`)
	fmt.Fprintf(&n.told, ">\n> **%s?**\n>\n> [ %s ]\n", confirm, confirm)
	return n.answer(stuck.Form(action, stuck.Fields(n.T, asked, action)...))
}

// tell tells what came of an action.
func (n *night) tell(page string) {
	n.Helper()
	fmt.Fprintf(&n.told, ">\n> → %s\n", n.find(page, `<p class="done" role="status">(.*?)</p>`))
}
