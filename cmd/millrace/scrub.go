package main

import (
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/millrace-go/millrace/internal/secret"
)

// secrets are texts that must not be shown. Drivers quote the connection string in errors.
type secrets struct {
	hidden    []string
	passwords []string
	words     map[string]bool // of the help texts
}

// shortest is the length below which hiding a password would garble every output.
const shortest = 4

// add hides texts in every form in which a connection string, a quotation, JSON, CSV or YAML may hold them.
func (s *secrets) add(texts ...string) {
	for _, text := range texts {
		for _, form := range []string{text, url.QueryEscape(text), url.PathEscape(text), inQuotes(text)} {
			for _, form := range []string{form, inJSON(form)} {
				for _, form := range []string{form, doubled(form, `"`), doubled(form, "'")} { // as CSV has them, and YAML
					if len(form) >= shortest && !slices.Contains(s.hidden, form) {
						s.hidden = append(s.hidden, form)
					}
				}
			}
		}
	}
	// A text that contains another one comes first.
	slices.SortFunc(s.hidden, func(a, b string) int { return len(b) - len(a) })
}

func inQuotes(text string) string {
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

func inJSON(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		return text // cannot happen: strings.Replacer takes any text
	}
	return string(quoted[1 : len(quoted)-1])
}

func doubled(text, mark string) string { return strings.ReplaceAll(text, mark, mark+mark) }

// addPassword hides a password unless it equals a public name or a word of the help: hiding that would
// garble results and keep no secret.
func (s *secrets) addPassword(password string, names ...string) {
	if !slices.Contains(names, password) && !s.words[password] {
		s.add(password)
		s.passwords = append(s.passwords, password)
	}
}

// show no longer hides a password that equals one of these names.
func (s *secrets) show(names ...string) {
	for _, name := range names {
		if slices.Contains(s.passwords, name) {
			s.hidden = slices.DeleteFunc(s.hidden, func(h string) bool { return h == name })
		}
	}
}

// wordsOf returns the words of the help texts of cmd and its subcommands.
func wordsOf(cmd *cobra.Command) map[string]bool {
	words := make(map[string]bool)
	text := strings.Join([]string{cmd.Use, cmd.Short, cmd.Long, cmd.Example, cmd.LocalFlags().FlagUsages()}, " ")
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) }) {
		words[word] = true
	}
	for _, sub := range cmd.Commands() {
		maps.Copy(words, wordsOf(sub))
	}
	return words
}

// clean returns text without secrets.
func (s *secrets) clean(text string) string {
	for _, hidden := range s.hidden {
		if number.MatchString(hidden) {
			text = withoutNumber(text, hidden)
			continue
		}
		text = strings.ReplaceAll(text, hidden, secret.Concealed)
	}
	parts := strings.Split(text, ellipsis)
	for i := range len(parts) - 1 {
		parts[i] = s.cleanEnd(parts[i])
	}
	return strings.Join(parts, ellipsis)
}

// number is a secret that may be a number of the results as well. There it stays, because without it a document would be
// none, and nobody can tell what it is: in a number that is a whole cell of a table, or a whole value of JSON or YAML.
var (
	number  = regexp.MustCompile(`^[0-9]+$`)
	opening = regexp.MustCompile(`(^|  |^\s*(- )?"?[\w-]+"?: |^\s*- )-?[0-9.]*$`)
	closing = regexp.MustCompile(`^[0-9.]*(,?$|  )`)
)

// withoutNumber hides a secret of digits where it is part of a text.
func withoutNumber(text, hidden string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		parts := strings.Split(line, hidden)
		clean := parts[0]
		for j, after := range parts[1:] {
			before, rest := strings.Join(parts[:j+1], hidden), strings.Join(parts[j+1:], hidden)
			if opening.MatchString(before) && closing.MatchString(rest) {
				clean += hidden + after
			} else {
				clean += secret.Concealed + after
			}
		}
		lines[i] = clean
	}
	return strings.Join(lines, "\n")
}

// schemes are the beginnings of connection strings that keep no secret.
var schemes = []string{"postgres://", "postgresql://", "mysql://"}

// cleanEnd is clean for a text that was cut off: it also removes the beginning of a secret at the
// end.
func (s *secrets) cleanEnd(text string) string {
	for _, hidden := range s.hidden {
		for n := len(hidden) - 1; n >= shortest; n-- {
			if before, found := strings.CutSuffix(text, hidden[:n]); found && !slices.Contains(schemes, hidden[:n]) {
				return before + secret.Concealed
			}
		}
	}
	return text
}

// scrubbed is a stream without secrets. It cleans each Write by itself, so that no Write may end in the middle of one.
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
