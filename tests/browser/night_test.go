package browser_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/tests/incident"
	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestANight: one night is mended by the browser alone, which opens one address and clicks from there. The command
// mends it in cmd/millrace/tests. docs/a-night.md is what they show; -update writes it.
func TestANight(t *testing.T) {
	testdb.Turn(t, 3, longest)
	on(t, func(t *testing.T, b *browser) {
		n := awake{b, incident.New(t)}
		s := service{Service: n.Service}
		n.visit(s.listen(func(c *dashboard.Config) {
			c.Title, c.Budget = "shop", rig.Patience // one request retries all
		}))
		n.mend()
		n.Compare("../../docs/a-night.md", "By the browser", *update)
	})
}

// awake is whoever mends the night by the browser.
type awake struct {
	*browser
	*incident.Night
}

func (n awake) mend() {
	n.overview(incident.Wrong...)
	n.open(incident.Wrong[0], "broker out", "has got nothing through to the broker", "dial tcp: connection refused")
	n.BrokerIsBack()
	n.RelayIsKilled()
	const noRelay = "no relay runs"
	left := incident.Wrong[1:]
	n.overview(append([]string{noRelay}, left...)...)
	n.open(noRelay, "lease ended", "64 of 64 shards have no living relay")
	n.RelayIsStarted()
	n.overview(left...)

	n.open(left[0])
	n.click("cart-7", "version 3 is missing")
	n.Say(incident.NeverSent)
	n.decide("Skip the gap", incident.Skipped)
	n.overview(left[1:]...)

	n.open(left[1], "makes them due in the consumer's queue")
	n.HandlerIsMended()
	n.decide("Retry 1,000 messages", incident.HasOwners)
	n.overview(left[2:]...)

	n.open(left[2], "same key as message order-0001, other payload")
	n.Say(incident.NotTheSame)
	n.retryTheRow(incident.AnotherOrder)
	n.overview(left[3:]...)

	n.open(left[3], "paused")
	n.decide("Resume", incident.StockIsTaken)
	n.lacks("Resume")
	n.overview(left[4:]...)

	n.open(left[4], "no janitor has ever deleted its expired claims", "give the router the plugin")
	n.JanitorIsStarted()
	n.overview()
	n.Over()
	n.click("Audit", incident.Skipped, incident.HasOwners, incident.AnotherOrder, incident.StockIsTaken)
}

// overview goes to the first page until these problems and no other are on it, and tells of them.
func (n awake) overview(want ...string) {
	n.Helper()
	var rows [][]string
	rig.Eventually(n.T, "the first page shows nothing else than "+strings.Join(want, "; "), func() bool {
		n.follow("Overview")
		rows = get(n.browser, chromedp.Evaluate[[][]string](`[...document.querySelectorAll("#problems tbody tr")].map(
			r => [r.cells[0].innerText, r.cells[1].innerText, r.querySelector("a").firstChild.textContent])`))
		for i, row := range rows {
			if i >= len(want) || !strings.HasPrefix(row[0], want[i]) {
				return false
			}
		}
		return len(rows) == len(want)
	})
	n.Say("> **Overview**\n>")
	for _, row := range rows {
		fmt.Fprintf(&n.Told, "> - %s (%s) → *%s*\n", row[0], row[1], row[2])
	}
	if len(rows) == 0 {
		n.reads("Nothing is wrong.")
		n.Told.WriteString("> Nothing is wrong.\n")
	}
}

// open clicks the link of a problem.
func (n awake) open(problem string, texts ...string) {
	n.Helper()
	n.lead(`//section[@id="problems"]//tr[td[starts-with(normalize-space(), "`+problem+`")]]//a`, texts)
}

// click clicks the link with this text.
func (n awake) click(link string, texts ...string) {
	n.Helper()
	n.lead(`//a[normalize-space()="`+link+`"]`, texts)
}

// lead clicks a link to a page that shows these texts.
func (n awake) lead(link string, texts []string) {
	n.Helper()
	label := get(n.browser, chromedp.Evaluate[string](
		"document.evaluate(`"+link+"`, document, null, XPathResult.FIRST_ORDERED_NODE_TYPE).singleNodeValue.firstChild.textContent"))
	n.tell("click *%s*", label)
	n.answers(n.press(link))
	n.Say("> **" + get(n.browser, chromedp.Text(chromedp.CSS("h1"))) + "**")
	n.reads(texts...)
	for _, text := range texts {
		n.tell("%s", text)
	}
}

// decide opens the form behind a button, says why, and sends it.
func (n awake) decide(button, reason string) {
	n.Helper()
	n.tell("click [ %s… ], type “%s”, click [ %s ]", button, reason, button)
	n.answers(n.act(button, reason))
	n.done()
}

// retryTheRow ticks the box of the only row, has it retried, and confirms.
func (n awake) retryTheRow(reason string) {
	n.Helper()
	n.tell("tick the row, click [ With the chosen… ], type “%s”, click [ Retry… ]", reason)
	n.do(chromedp.Click(`//input[@name="chosen"]`), chromedp.Click(`//summary[starts-with(., "With the chosen")]`),
		chromedp.SendKeys(`//details[@open]//input[@name="reason"]`, reason))
	n.answers(n.press(`//button[.="Retry…"]`))
	n.Say("> **" + get(n.browser, chromedp.Text(chromedp.CSS("h1"))) + "**")
	n.reads("In shop", "Reason: "+reason)
	n.tell("click [ Retry 1 message ]")
	n.answers(n.press(`//button[.="Retry 1 message"]`))
	n.done()
}

// done tells what the page says of an action.
func (n awake) done() {
	n.Helper()
	n.tell("%s", get(n.browser, chromedp.Text(chromedp.CSS("p.done"))))
}

func (n awake) answers(status int64) { n.Helper(); require.EqualValues(n, http.StatusOK, status) }

// tell tells a line of the page that was told of last.
func (n awake) tell(format string, args ...any) {
	told := strings.TrimSuffix(n.Told.String(), "\n")
	between := ">\n> "
	if !strings.HasPrefix(told[strings.LastIndex(told, "\n")+1:], ">") {
		between = "\n> " // something was said since
	}
	fmt.Fprintf(&n.Told, between+format+"\n", args...)
}
