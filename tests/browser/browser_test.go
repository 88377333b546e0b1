package browser_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/rig"
	"github.com/millrace-go/millrace/tests/testdb"
)

// browser is a tab.
type browser struct {
	*testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps the tab in it
}

// screen is what a page is shown on.
type screen struct {
	width, height int64
	dark          bool
	noScript      bool
}

var (
	desk  = screen{width: 1280, height: 800}
	night = screen{width: 1280, height: 800, dark: true}
	phone = screen{width: 390, height: 844}
	bare  = screen{width: 1280, height: 800, noScript: true}
)

// shared is the browser in which each test has a tab, and a profile, of its own.
var shared = sync.OnceValues(func() (context.Context, error) {
	program, err := chromium()
	if err != nil {
		return nil, err
	}
	allocated, stop := chromedp.NewExecAllocator(context.Background(), append(
		chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(profile), chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Env("TZ=Europe/Berlin"), chromedp.WSURLReadTimeout(rig.Patience))...)
	ctx, leave := chromedp.NewContext(allocated)
	closing = append(closing, leave, stop)
	return ctx, chromedp.Do(ctx)
})

// What is to be done, and to be removed, when the tests are over.
var (
	closing []func()
	profile string
)

func TestMain(m *testing.M) {
	var err error
	if profile, err = os.MkdirTemp("", "millrace-chromium-"); err != nil {
		panic(err)
	}
	status := m.Run()
	for _, end := range closing {
		end()
	}
	_ = os.RemoveAll(profile) // Chromium may still write
	os.Exit(status)
}

func chromium() (string, error) {
	if named := os.Getenv("MILLRACE_TEST_CHROMIUM"); named != "" {
		return named, nil
	}
	return exec.LookPath("chromium")
}

func open(t *testing.T, on screen) *browser {
	t.Helper()
	if _, err := chromium(); err != nil {
		testdb.Missing(t, "chromium", `set MILLRACE_TEST_CHROMIUM, or: eval "$(tests/services.sh)"`)
	}
	all, err := shared()
	require.NoError(t, err)
	ctx, leave := chromedp.NewContext(all, chromedp.WithNewBrowserContext())
	t.Cleanup(leave)
	late := time.AfterFunc(rig.Patience, leave)
	require.NoError(t, chromedp.Do(ctx), "a tab opens")
	late.Stop()
	b := &browser{T: t, ctx: ctx}
	b.do(chromedp.EmulateViewport(on.width, on.height))
	b.light(!on.dark)
	_, err = chromedp.Call(b.step(), emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: on.noScript})
	require.NoError(t, err)
	return b
}

// light chooses between the light and the dark pages.
func (b *browser) light(on bool) {
	b.Helper()
	scheme := "dark"
	if on {
		scheme = "light"
	}
	_, err := chromedp.Call(b.step(), emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(b, err)
}

// step returns the context of one step. Each step is bounded, and not the whole: a test may have to build what it visits.
func (b *browser) step() context.Context {
	ctx, cancel := context.WithTimeout(b.ctx, rig.Patience)
	b.Cleanup(cancel)
	return ctx
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	require.NoError(b, chromedp.Do(b.step(), steps...))
}

// get runs what has a result.
func get[T any](b *browser, a chromedp.Action[T]) T {
	b.Helper()
	result, err := chromedp.Run(b.step(), a)
	require.NoError(b, err)
	return result
}

// visit opens an address.
func (b *browser) visit(address string) {
	b.Helper()
	b.do(chromedp.Navigate(address))
}

// reads asserts that the page shows these texts.
func (b *browser) reads(texts ...string) {
	b.Helper()
	page := get(b, chromedp.Text(chromedp.CSS("body")))
	for _, text := range texts {
		require.Contains(b, page, text)
	}
}

// lacks asserts that the page does not show these texts.
func (b *browser) lacks(texts ...string) {
	b.Helper()
	page := get(b, chromedp.Text(chromedp.CSS("body")))
	for _, text := range texts {
		require.NotContains(b, page, text)
	}
}

// press clicks on what leads to another page, and returns the status of that.
func (b *browser) press(what string) int64 {
	b.Helper()
	response, err := chromedp.RunResponse(b.step(), chromedp.Click(what))
	require.NoError(b, err, what)
	return response.Status
}

// follow presses the link with this text.
func (b *browser) follow(text string) { b.Helper(); b.press(`//a[normalize-space()="` + text + `"]`) }

// act opens the form behind a button, says why, and sends it.
func (b *browser) act(button, reason string) int64 {
	b.Helper()
	form := `//details[summary[starts-with(normalize-space(), "` + button + `")]]`
	b.do(chromedp.Click(form+`/summary`), chromedp.SendKeys(form+`//input[@name="reason"]`, reason))
	return b.press(form + `//button`)
}

// shown reports whether the page has an element.
func (b *browser) shown(selector string) bool {
	b.Helper()
	return strings.Contains(get(b, chromedp.OuterHTML(chromedp.CSS("html"))), selector)
}
