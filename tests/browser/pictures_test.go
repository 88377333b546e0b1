package browser_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

var update = flag.Bool("update", false, "write docs/images, and what docs/a-night.md says of the browser")

// TestPictures takes the pictures of the documentation, or some of them where they are not to be written. It asserts
// only that they are there and small: no two runs draw the same.
func TestPictures(t *testing.T) {
	const most = 150_000
	into := t.TempDir()
	if *update {
		into = filepath.Join("..", "..", "docs", "images")
	}
	s := newService(t, named)
	s.fill()
	type picture struct {
		name string
		page string
		on   screen
	}
	all := []picture{
		{"overview", "", screen{width: 1180, height: 640}},
		{"overview-dark", "", screen{width: 1180, height: 640, dark: true}},
		{"message", "message?key=order-0001", screen{width: 1180, height: 640}},
		{"failures-dark", "failures", screen{width: 1180, height: 330, dark: true}},
		{"inbox", "inbox?status=failed_terminal&consumer=billing", screen{width: 1180, height: 640}},
		{"phone", "", screen{width: 390, height: 844, dark: true}},
	}
	if !*update {
		all = testdb.Sample(t, 2, all)
	}
	for _, picture := range all {
		b := open(t, picture.on)
		b.visit(s.home + picture.page)
		shot, err := chromedp.Call(b.step(), page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng})
		require.NoError(t, err)
		assert.Less(t, len(shot.Data), most, picture.name)
		require.NoError(t, os.WriteFile(filepath.Join(into, picture.name+".png"), shot.Data, 0o644)) //nolint:gosec // a document
	}
}
