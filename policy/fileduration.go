package policy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	day         = 24 * time.Hour
	longest     = 100 * 365 * day
	foreverWord = "forever"
)

// units of a Duration, the longest first.
var units = []struct {
	name string
	is   time.Duration
}{{"d", day}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}}

var durationForm = regexp.MustCompile(`^(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$`)

// ParseDuration parses a duration of a policy file: 500ms, 90s, 12h, 7d, 1d12h, or forever.
func ParseDuration(text string) (Duration, error) {
	if text == foreverWord {
		return Forever, nil
	}
	if text == "" || !durationForm.MatchString(text) {
		return 0, fmt.Errorf("%q is not a duration: write whole numbers with ms, s, m, h or d, such as 90s, 12h or 7d%s",
			text, orForever(text))
	}
	var sum time.Duration
	for i, part := range durationForm.FindStringSubmatch(text)[1:] {
		if part == "" {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(part, units[i].name), 10, 64)
		if err != nil || n > int64(longest/units[i].is) {
			return 0, fmt.Errorf("%s is longer than a hundred years: write less, or forever where that is allowed", text)
		}
		sum += time.Duration(n) * units[i].is
	}
	return Duration(sum), nil
}

// orForever adds a hint to the error for a text without a number.
func orForever(text string) string {
	switch {
	case nearest(strings.ToLower(text), []string{foreverWord, "never", "infinite", "inf", "unlimited"}) != "":
		return "; a time without end is written " + foreverWord
	case regexp.MustCompile(`^\d+w$`).MatchString(text):
		return "; a week is 7d"
	}
	return ""
}

// String returns d as a policy file writes it.
func (d Duration) String() string {
	if d == Forever {
		return foreverWord
	}
	rest := time.Duration(d)
	if rest < 0 || rest%time.Millisecond != 0 {
		return rest.String()
	}
	var b strings.Builder
	for _, u := range units {
		if n := rest / u.is; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			rest %= u.is
		}
	}
	if b.Len() == 0 {
		return "0s"
	}
	return b.String()
}

// MarshalText returns [Duration.String], for YAML and JSON.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses text with [ParseDuration].
func (d *Duration) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDuration(string(text))
	return err
}
