package stuck

import (
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Form is a form as a browser would send it, from a page of the same site.
func Form(action string, pairs ...string) *http.Request {
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		values.Add(pairs[i], pairs[i+1])
	}
	r := httptest.NewRequest(http.MethodPost, Prefix+"/"+action, strings.NewReader(values.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

// lines does to line ends in a form what a browser does: it reads a carriage return as a line feed, and sends a line
// feed as both.
var lines = strings.NewReplacer("\r\n", "\r\n", "\r", "\r\n", "\n", "\r\n")

// Fields returns the hidden fields of the form for an action on a page, as pairs.
func Fields(t *testing.T, page, action string) (pairs []string) {
	t.Helper()
	_, rest, found := strings.Cut(page, `action="`+action+`"`)
	require.True(t, found, "the page has no form for %s", action)
	inner, _, _ := strings.Cut(rest, "</form>")
	for _, piece := range strings.Split(inner, `<input type="hidden" name="`)[1:] {
		name, after, _ := strings.Cut(piece, `" value="`)
		value, _, _ := strings.Cut(after, `"`)
		pairs = append(pairs, name, lines.Replace(html.UnescapeString(value)))
	}
	return pairs
}

// Boxes returns the values of the check boxes of a page.
func Boxes(t *testing.T, page string) (values []string) {
	t.Helper()
	for _, box := range regexp.MustCompile(`name="chosen" value="([^"]*)" form=`).FindAllStringSubmatch(page, -1) {
		values = append(values, html.UnescapeString(box[1]))
	}
	require.NotEmpty(t, values)
	return values
}
