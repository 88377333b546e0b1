package dashboard_test

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/millrace/inbox/admin"
	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestAnyKeyIsFound: a key joined of parts has their lengths in it, and a length of ten is a
// line feed.
func TestAnyKeyIsFound(t *testing.T) {
	b := newBed(t, testdb.On(t, "sqlite"))
	b.Serve(consumer)
	for _, key := range []string{"\n/shop/eu/1\x0217", "a\r\nb", "50%25+&/ ü?#", "%zz"} {
		msg := stuck.Order(1, "")
		msg.UUID = key
		msg.Metadata.Set("keeps", "what "+url.QueryEscape(key)+" left")
		failing := stuck.Order(2, "no owner")
		failing.UUID = key + "!"
		b.Put(consumer, msg, failing)
		b.AwaitStuck(1)
		page := b.get("message?key=" + url.QueryEscape(key))
		b.shows(b.post("message-result", append(b.fields(page, "message-result"), "reason", "x")...), "left")
		page = b.get("message?key=" + url.QueryEscape(key+"!"))
		b.shows(b.post("message-reveal", append(b.fields(page, "message-reveal"), "reason", "x")...), "pieces")
		next := b.done(b.post("message-discard", append(b.fields(page, "message-discard"), "reason", "x")...))
		b.shows(next, "discard by ada", "closed without being handled")
		assert.Equal(t, 0, b.Count(`SELECT COUNT(*) FROM millrace_messages WHERE status = ?`, admin.Parked))
	}
}

// TestAnyConsumerIsFound: by links, in the filter, and by its forms.
func TestAnyConsumerIsFound(t *testing.T) {
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		b := newBed(t, db)
		for _, name := range []string{"  two  spaces ", "a/b%2F?c&d#e+ü", "line\nend", strings.Repeat("x", 255)} {
			b.Put(name, stuck.Order(1, ""))
			link := "consumer=" + url.QueryEscape(name)
			b.shows(b.get("?"+link), "Overview of")
			page := b.get("inbox?" + link)
			b.shows(page, "order-0001")
			chosen := regexp.MustCompile(`<option value="([^"]*)" selected>`).FindStringSubmatch(page.text)
			if assert.Len(t, chosen, 2, name) {
				assert.Equal(t, name, html.UnescapeString(chosen[1]))
			}
			card := b.get("consumers")
			for _, what := range []string{"consumers-pause", "consumers-resume"} {
				b.done(b.post(what, append(b.fields(card, what), "reason", "x")...))
				card = b.get("consumers")
			}
			assert.Equal(t, 2, b.Count(`SELECT COUNT(*) FROM millrace_audit`))
			b.shows(b.get("audit?"+link), "pause", "resume")
			for _, query := range []string{`DELETE FROM millrace_audit`, `DELETE FROM millrace_messages`, `DELETE FROM millrace_consumers`} {
				db.Do(t, query)
			}
			b.pages = b.Dashboard()
		}
	})
}
