package main

import (
	"encoding/json"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// secrets are texts that must not be shown. Drivers put the connection string into errors.
type secrets struct{ hidden []string }

// shortest is the length of a password below which replacing it would garble everything.
const shortest = 4

// add hides a text, in all forms in which a connection string, a quotation or JSON may hold it.
func (s *secrets) add(texts ...string) {
	for _, text := range texts {
		for _, form := range []string{text, url.QueryEscape(text), url.PathEscape(text), inQuotes(text)} {
			for _, form := range []string{form, inJSON(form)} {
				if len(form) >= shortest && !slices.Contains(s.hidden, form) {
					s.hidden = append(s.hidden, form)
				}
			}
		}
	}
	// What contains another one goes first.
	slices.SortFunc(s.hidden, func(a, b string) int { return len(b) - len(a) })
}

func inQuotes(text string) string {
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

func inJSON(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		return text // no text is refused
	}
	return string(quoted[1 : len(quoted)-1])
}

// addPassword hides a password, unless it is a name that everybody knows: replacing that
// would garble results and hide nothing.
func (s *secrets) addPassword(password string, names ...string) {
	if !slices.Contains(names, password) {
		s.add(password)
	}
}

// A password in a connection string that was given where none belongs: before a host, or
// behind its name.
var (
	credentials = regexp.MustCompile(`(://[^:/@\s]*:|\b[\w.-]+:)(\S+)(@[\w.\[\]-]*[:/(])`)
	passwords   = regexp.MustCompile(`(?i)(\bpassword\s*=\s*)('[^']*'|[^\s&"']+)`)
)

const concealed = "[hidden]"

func withoutCredentials(text string) string {
	text = credentials.ReplaceAllString(text, "${1}"+concealed+"${3}")
	return passwords.ReplaceAllString(text, "${1}"+concealed)
}

// clean returns text without secrets.
func (s *secrets) clean(text string) string {
	for _, hidden := range s.hidden {
		text = strings.ReplaceAll(text, hidden, concealed)
	}
	parts := strings.Split(text, ellipsis)
	for i := range len(parts) - 1 {
		parts[i] = s.cleanEnd(parts[i])
	}
	return strings.Join(parts, ellipsis)
}

// cleanEnd returns text, which was cut, without the beginning of a secret at its end.
func (s *secrets) cleanEnd(text string) string {
	for _, hidden := range s.hidden {
		for n := len(hidden) - 1; n >= shortest; n-- {
			if before, found := strings.CutSuffix(text, hidden[:n]); found {
				return before + concealed
			}
		}
	}
	return text
}

// scrubbed is a stream that no secret gets into. Each call of Write is cleaned by itself.
type scrubbed struct {
	to      io.Writer
	secrets *secrets
}

func (s scrubbed) Write(p []byte) (int, error) {
	if _, err := io.WriteString(s.to, s.secrets.clean(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
