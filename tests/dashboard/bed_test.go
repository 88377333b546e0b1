package dashboard_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/dashboard"
	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// bed is a service, seen through its dashboard.
type bed struct {
	*stuck.Service
	pages http.Handler
}

func newBed(t *testing.T, db *testdb.DB, change ...func(*dashboard.Config)) *bed {
	t.Helper()
	s := stuck.New(t, db)
	return &bed{s, s.Dashboard(change...)}
}

func readOnly(c *dashboard.Config) { c.ReadOnly = true }

// answer is what came back.
type answer struct {
	*http.Response
	text string
}

func (b *bed) send(r *http.Request) answer {
	b.Helper()
	recorder := httptest.NewRecorder()
	b.pages.ServeHTTP(recorder, r)
	response := recorder.Result()
	text, err := io.ReadAll(response.Body)
	require.NoError(b, err)
	assert.NotContains(b, string(text), "could not be rendered", b.Log.Logs())
	return answer{response, string(text)}
}

func (b *bed) get(page string) answer {
	b.Helper()
	return b.send(httptest.NewRequest(http.MethodGet, stuck.Prefix+"/"+page, nil))
}

// post sends a form as a browser would, from a page of the same site.
func (b *bed) post(action string, pairs ...string) answer {
	b.Helper()
	return b.send(stuck.Form(action, pairs...))
}

// shows asserts that a page is answered and has these texts.
func (b *bed) shows(a answer, texts ...string) {
	b.Helper()
	require.Equal(b, http.StatusOK, a.StatusCode, a.text)
	for _, text := range texts {
		assert.True(b, strings.Contains(a.text, text), "the page lacks %q", text) // it is too long to print
	}
}

// done asserts that an action was carried out, and follows where it leads.
func (b *bed) done(a answer) answer {
	b.Helper()
	require.Equal(b, http.StatusSeeOther, a.StatusCode, a.text)
	to := a.Header.Get("Location")
	require.True(b, strings.HasPrefix(to, "./"), to)
	next := b.get(strings.TrimPrefix(to, "./"))
	b.shows(next, `class="done"`)
	return next
}

// refused asserts that nothing was done, and why.
func (b *bed) refused(a answer, status int, why string) {
	b.Helper()
	assert.Equal(b, status, a.StatusCode)
	assert.Contains(b, a.text, why)
}

// choose ticks boxes of a list, all of those for the action unless they are named, and presses the button below it.
func (b *bed) choose(page answer, action, reason string, boxes ...string) answer {
	b.Helper()
	pairs := []string{"reason", reason}
	require.True(b, strings.Contains(page.text, `action="`+action+`"`), "the page has no button for %s", action)
	if len(boxes) == 0 {
		boxes = b.boxes(page)
	}
	for _, box := range boxes {
		pairs = append(pairs, "chosen", box)
	}
	return b.post(action, pairs...)
}

// boxes returns the values of the check boxes of a page.
func (b *bed) boxes(page answer) []string {
	b.Helper()
	return stuck.Boxes(b.T, page.text)
}

// confirm presses the button of a page that asked.
func (b *bed) confirm(asked answer, action string) answer {
	b.Helper()
	require.Equal(b, http.StatusOK, asked.StatusCode, asked.text)
	return b.post(action, b.fields(asked, action)...)
}

// only returns the one message that is open.
func (b *bed) only() admin.Message {
	b.Helper()
	all, err := admin.New(b.Store).Find(b.Context(), admin.Filter{}, 0, 10)
	require.NoError(b, err)
	require.Len(b, all, 1)
	return all[0]
}

// fields returns the hidden fields of the form for an action on a page, as pairs.
func (b *bed) fields(page answer, action string) (pairs []string) {
	b.Helper()
	return stuck.Fields(b.T, page.text, action)
}
