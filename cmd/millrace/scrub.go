package main

import (
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// secrets are texts that must not be shown. Drivers put the connection string into errors.
type secrets struct{ hidden []string }

// shortest is the length of a password below which replacing it would garble everything.
const shortest = 4

// add hides a text, in all forms in which a connection string may hold it.
func (s *secrets) add(texts ...string) {
	for _, text := range texts {
		for _, form := range []string{text, url.QueryEscape(text), url.PathEscape(text)} {
			if len(form) >= shortest && !slices.Contains(s.hidden, form) {
				s.hidden = append(s.hidden, form)
			}
		}
	}
	// What contains another one goes first.
	slices.SortFunc(s.hidden, func(a, b string) int { return len(b) - len(a) })
}

// addPassword hides a password, unless it is a name that everybody knows: replacing that
// would garble results and hide nothing.
func (s *secrets) addPassword(password string, names ...string) {
	if !slices.Contains(names, password) {
		s.add(password)
	}
}

// credentials are a password in a connection string that was given where none belongs.
var credentials = regexp.MustCompile(`(://[^:/@\s]*:|\b[\w.-]+:)([^@\s]+)(@[\w.\[\]-]*[:/(])`)

const concealed = "[hidden]"

func withoutCredentials(text string) string {
	return credentials.ReplaceAllString(text, "${1}"+concealed+"${3}")
}

// clean returns text without secrets.
func (s *secrets) clean(text string) string {
	for _, hidden := range s.hidden {
		text = strings.ReplaceAll(text, hidden, concealed)
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
