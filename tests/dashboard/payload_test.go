package dashboard_test

import (
	"bytes"
	"html"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/stuck"
	"github.com/millrace-go/millrace/tests/testdb"
)

// TestPayloadsAreReadable: whatever bytes they are.
func TestPayloadsAreReadable(t *testing.T) {
	b := newBed(t, testdb.On(t, "sqlite"))
	for name, c := range map[string]struct {
		payload []byte
		want    []string
	}{
		"JSON":       {[]byte(`{"a":[1,2]}`), []string{"JSON, 11 bytes", "{\n  \"a\": [\n    1,\n    2\n  ]\n}"}},
		"text":       {[]byte("two\nlines"), []string{"text, 9 bytes", "two\nlines"}},
		"empty":      {[]byte{}, []string{"text, 0 bytes"}},
		"one byte":   {[]byte("x"), []string{"text, 1 byte"}},
		"binary":     {[]byte{0, 1, 0xff, 'a'}, []string{"binary, 4 bytes", "00000000  00 01 ff 61", "|...a|"}},
		"no glyph":   {[]byte("order\u200b-1\u2028\U000e0041\ufeff; tag é 👍 7\u00a0€"), []string{`order\u200b-1\u2028\U000e0041\ufeff; tag é 👍 7`}},
		"reordering": {[]byte("invoice \u202egnp.exe"), []string{`invoice \u202egnp.exe`}},
		"large text": {bytes.Repeat([]byte("é"), 100_000), []string{"195.3 KiB, the beginning"}},
		"large JSON": {[]byte(`["` + strings.Repeat("x", 2<<20) + `"]`), []string{"2.0 MiB, the beginning"}},
		"large junk": {bytes.Repeat([]byte{0}, 100_000), []string{"binary, 97.7 KiB, the beginning"}},
	} {
		t.Run(name, func(t *testing.T) {
			msg := stuck.Order(1, "")
			msg.UUID, msg.Payload = "m-"+strings.ReplaceAll(name, " ", "-"), c.payload
			b.Put(consumer, msg)
			page := b.get("message?key=" + msg.UUID)
			shown := b.post("message-reveal", append(b.fields(page, "message-reveal"), "reason", "to see")...)
			require.Less(t, len(shown.text), 400_000)
			for _, want := range c.want {
				assert.True(t, strings.Contains(html.UnescapeString(shown.text), want), "the page lacks %q", want)
			}
		})
	}
}
