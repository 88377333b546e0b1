package browser_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

// violation is what axe-core has to say.
type violation struct {
	ID     string   `json:"id"`
	Impact string   `json:"impact"`
	Help   string   `json:"help"`
	Nodes  []string `json:"nodes"`
}

// run has axe-core look at the page, with the rules of WCAG 2.2 AA and its best practices.
const run = `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v =>
	({id: v.id, impact: v.impact || "", help: v.help, nodes: v.nodes.map(n => n.html.slice(0, 200) + " " + (n.any[0] || {message: ""}).message)})))`

// axe is the source of axe-core.
func axe(t *testing.T) string {
	t.Helper()
	source, err := os.ReadFile(os.Getenv("MILLRACE_TEST_AXE"))
	if err != nil {
		testdb.Missing(t, "axe-core", `set MILLRACE_TEST_AXE to its axe.min.js, or: eval "$(tests/services.sh)"`)
	}
	return string(source)
}

// accessible asserts that axe-core finds nothing on the page.
func (b *browser) accessible(axe, where string) {
	b.Helper()
	get(b, chromedp.Evaluate[bool](axe+"; true"))
	for _, v := range get(b, chromedp.Evaluate[[]violation](run, chromedp.EvalAwaitPromise)) {
		assert.Fail(b, "axe: "+v.ID, "%s: %s (%s)\n%s", where, v.Help, v.Impact, strings.Join(v.Nodes, "\n"))
	}
}

// longest are tests that keep the browser busy for seconds.
var longest = []string{
	"TestAxeFindsNoViolation", "TestANight", "TestPagesFollowWhatHappens", "TestRetryALargeGroup", "TestTheCommandWithAToken",
	"TestFindReadRetryAndSeeCompleted", "TestAPhoneNeedsNoSidewaysScrolling", "TestScriptsAreShownAsText",
}

// TestAxeFindsNoViolation: on any page, dark and light, on a desk and a phone; usually on six pages, others from day to day.
func TestAxeFindsNoViolation(t *testing.T) {
	testdb.Turn(t, 3, longest)
	source := axe(t)
	s := newService(t, named)
	s.fill()
	all := append([]string{s.groupPage()}, pages...)
	door, several := s.ui(doorToken), s.several()
	screens := map[string]screen{"light": desk, "dark": night, "phone": phone}
	for _, name := range testdb.Sample(t, 1, slices.Sorted(maps.Keys(screens))) {
		t.Run(name, func(t *testing.T) {
			b := open(t, screens[name])
			_, err := chromedp.Call(b.step(), page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true}) // axe comes from outside
			require.NoError(t, err)
			var looks []func()
			at := func(url, name string) {
				looks = append(looks, func() {
					b.visit(url)
					get(b, chromedp.Evaluate[int](`document.querySelectorAll("details").forEach(d => { d.open = true })||1`))
					b.accessible(source, name)
				})
			}
			for _, page := range all {
				at(s.home+page, page)
			}
			for _, page := range []string{"", "eu/", "us/", "nowhere"} {
				at(several+page, "of several databases: "+page)
			}
			for _, button := range []string{"Show the payload", "Show the result"} {
				looks = append(looks, func() {
					b.visit(s.home + "message?key=order-0001")
					b.act(button, "to look at it")
					b.accessible(source, button)
					if button == "Show the result" {
						b.reads("sent as 4711")
					}
				})
			}
			looks = append(looks, func() {
				b.visit(s.home + "waiting")
				b.do(chromedp.Click(`//input[@name="chosen"]`), chromedp.Click(`//summary[starts-with(., "With the chosen")]`),
					chromedp.SendKeys(`//details[@open]//input[@name="reason"]`, "they never come"))
				b.press(`//button[.="Skip the gap…"]`)
				b.accessible(source, "Skip the gap")
			}, func() {
				b.visit(door)
				b.accessible(source, "the door")
				b.signIn("grace", "not the token")
				b.accessible(source, "the door, shut")
			})
			for _, look := range testdb.Sample(t, 6, looks) {
				look()
			}
		})
	}
}

// TestAxeFindsWhatIsWrong: the test above can fail.
func TestAxeFindsWhatIsWrong(t *testing.T) {
	source := axe(t)
	b := open(t, desk)
	b.visit(`data:text/html,<title>x</title><img src="x"><p style="color:%23ccc">pale</p>`)
	get(b, chromedp.Evaluate[bool](source+"; true"))
	assert.NotEmpty(t, get(b, chromedp.Evaluate[[]violation](run, chromedp.EvalAwaitPromise)))
}
