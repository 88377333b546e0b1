package dashboard

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-go/millrace/inbox"
	"github.com/millrace-go/millrace/inbox/admin"
)

// show makes visible: characters without a glyph, those that reorder the text around them, and
// bytes that are not text.
func show(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case r == '\n' || r == '\t':
			b.WriteRune(r)
		case unicode.IsGraphic(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		text = text[n:]
	}
	return b.String()
}

// short returns the beginning of a text, on one line.
func short(most int, text string) string {
	line, _, more := strings.Cut(show(text), "\n")
	runes := []rune(line)
	if len(runes) > most {
		return string(runes[:most]) + "…"
	}
	if more {
		return line + " …"
	}
	return line
}

// lower returns the name of a state as people write it.
func lower(s fmt.Stringer) string {
	return strings.ToLower(strings.ReplaceAll(s.String(), "_", " "))
}

// stamp formats a time for a <time> element: exact, in UTC.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// utc formats the exact time for people.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000000") + " UTC" }

// clock formats a time for people if the reader's time zone is unknown.
func clock(t time.Time) string { return t.UTC().Format("2 Jan 15:04:05") + " UTC" }

func microseconds(t time.Time) string { return strconv.FormatInt(t.UnixMicro(), 10) }

// age formats a duration or an age to one or two digits.
func age(d time.Duration) string {
	switch {
	case d <= 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return strings.TrimSuffix(fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute), " 0 min")
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// ago says when t was, or will be, relative to now.
func ago(now, t time.Time) string {
	switch d := now.Sub(t); {
	case d < -time.Second:
		return "in " + age(-d)
	case d < time.Second:
		return "now"
	default:
		return age(d) + " ago"
	}
}

// span formats a configured duration, such as a retention.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == inbox.Forever:
		return "for ever"
	case d == 0:
		return "–"
	case d%day == 0:
		return plural(int64(d/day), "day")
	}
	return strings.TrimSuffix(strings.TrimSuffix(d.String(), "0s"), "0m")
}

// count formats a number with thousands separators, and with a plus sign if there may be more.
func count(c admin.Count) string {
	text := thousands(int64(c.N))
	if c.AtLeast {
		text += "+"
	}
	return text
}

func thousands(wholeNumber any) string {
	digits := fmt.Sprint(wholeNumber)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// plural formats a number of things.
func plural(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return thousands(n) + " " + thing + "s"
}

// body is a payload formatted for people.
type body struct {
	Kind string // "JSON", "text" or "binary"
	Text string
	Size string
	Cut  bool // Text is only the beginning
}

// How much of a payload is shown, and up to which size JSON is indented.
const (
	maxShown = 128 << 10
	maxLaid  = 1 << 20
	maxHex   = 8 << 10
)

func readable(payload []byte) body {
	b := body{Size: size(len(payload)), Kind: "text"}
	var laid bytes.Buffer
	switch {
	case len(payload) <= maxLaid && json.Valid(payload) && json.Indent(&laid, payload, "", "  ") == nil:
		b.Kind, b.Text, b.Cut = "JSON", show(clip(laid.Bytes())), laid.Len() > maxShown
	case utf8.Valid(payload) && !bytes.ContainsFunc(payload, unprintable):
		b.Text, b.Cut = show(clip(payload)), len(payload) > maxShown
	default:
		b.Kind, b.Text, b.Cut = "binary", hex.Dump(payload[:min(len(payload), maxHex)]), len(payload) > maxHex
	}
	return b
}

// writable returns a payload as a form may have it: a browser keeps no other characters, and no carriage return.
func writable(payload []byte) string {
	if len(payload) > maxShown || !utf8.Valid(payload) || bytes.ContainsFunc(payload, unprintable) || bytes.ContainsRune(payload, '\r') {
		return ""
	}
	return string(payload)
}

// clip shortens b between two characters if it is too long.
func clip(b []byte) string {
	if len(b) <= maxShown {
		return string(b)
	}
	end := maxShown
	for end > 0 && !utf8.RuneStart(b[end]) {
		end--
	}
	return string(b[:end])
}

func unprintable(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' }

func size(n int) string {
	switch {
	case n < 1<<10:
		return plural(int64(n), "byte")
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
