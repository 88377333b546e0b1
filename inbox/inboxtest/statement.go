package inboxtest

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/millrace-go/millrace/internal/dialect"
)

// text is a parsed statement.
type text struct {
	what   string // its verb and its table
	shown  string // on one line
	table  string
	writes bool
	undoes bool // what the transaction did after a savepoint
}

// of reports whether the statement is about one of the tables, which may be named without their schema, in any case.
func (t *text) of(tables []string) bool {
	bare := t.table[strings.LastIndexByte(t.table, '.')+1:]
	return slices.ContainsFunc(tables, func(one string) bool { return strings.EqualFold(one, t.table) || strings.EqualFold(one, bare) })
}

// texts caches parsed statements, by the kind of database and the statement.
var texts sync.Map

// read parses a statement for a kind of database.
func read(database, query string) *text {
	asked := [2]string{database, query}
	if known, found := texts.Load(asked); found {
		return known.(*text) //nolint:forcetypeassert // nothing else is stored
	}
	parts := split(database, query)
	t := &text{}
	if len(parts) > 0 {
		t.shown = strings.Join(strings.Fields(query[parts[0].at:]), " ")
	}
	verb := slices.IndexFunc(parts, func(p part) bool { return p.name && !p.quoted })
	if verb >= 0 {
		t.what = strings.ToUpper(parts[verb].text)
		if t.what == "WITH" {
			verb = max(verb, parts.write()) // what it reads may stand before that
		}
		t.writes = parts.is(verb, writing...) || parts.is(verb, "COPY") && parts.has("STDIN")
		t.table = parts.table(verb)
		t.undoes = t.what == "ROLLBACK" && (parts.is(verb+1, "TO") || parts.is(verb+2, "TO")) // WORK or TRANSACTION may stand before
	}
	if t.table != "" {
		t.what += " " + t.table
	}
	texts.Store(asked, t)
	return t
}

var (
	writing   = []string{"INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE", "CREATE", "DROP", "ALTER", "TRUNCATE"}
	direct    = []string{"INSERT", "UPDATE", "REPLACE", "MERGE", "TRUNCATE", "COPY"} // the table follows the verb, or these words:
	modifying = []string{"LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE", "OR", "ROLLBACK", "ABORT", "REPLACE", "FAIL", "INTO", "TABLE"}
	leading   = []string{"INTO", "UPDATE", "FROM", "JOIN", "TABLE"} // the table follows them, or these words:
	existing  = []string{"ONLY", "IF", "NOT", "EXISTS"}
)

// parts are the words, names, literals and signs of a statement, without its comments.
type parts []part

type part struct {
	text   string // a name without its quotes; "" for a literal
	at     int    // in the statement
	name   bool   // a word, or a quoted name
	quoted bool
}

// is reports whether part i is one of the words.
func (s parts) is(i int, words ...string) bool {
	return s.isName(i) && !s[i].quoted && slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, s[i].text) })
}

func (s parts) isName(i int) bool { return i >= 0 && i < len(s) && s[i].name }

func (s parts) has(word string) bool {
	for i := range s {
		if s.is(i, word) {
			return true
		}
	}
	return false
}

// write returns where a statement that begins with WITH begins to write, or -1 if it only reads. The words are names elsewhere.
func (s parts) write() int {
	for i := 1; i < len(s); i++ {
		begins := !s[i-1].name && slices.Contains([]string{"(", ")", ";"}, s[i-1].text)
		if begins && s.is(i, "INSERT", "UPDATE", "DELETE", "REPLACE", "MERGE") && s.isName(i+1) {
			return i
		}
	}
	return -1
}

// table returns the first table after the verb, with its schema, or "" if there is none.
func (s parts) table(verb int) string {
	for i := verb; i < len(s); i++ {
		isDirect := i == verb && s.is(i, direct...)
		if !isDirect && !s.is(i, leading...) {
			continue
		}
		at := i + 1
		for s.isName(at+1) && (s.is(at, existing...) || isDirect && s.is(at, modifying...)) {
			at++
		}
		if s.isName(at) {
			name := s[at].text
			for ; s.isName(at+2) && !s[at+1].name && s[at+1].text == "."; at += 2 {
				name += "." + s[at+2].text
			}
			return name
		}
	}
	return ""
}

var (
	letters = regexp.MustCompile(`^[\w$\x{80}-\x{10FFFF}]+`)
	dollars = regexp.MustCompile(`^\$(?:[A-Za-z_\x{80}-\x{10FFFF}][\w\x{80}-\x{10FFFF}]*)?\$`) // $$ or $tag$
)

// split splits a statement for a kind of database.
func split(database, query string) parts {
	var all parts
	mysql, sqlite, postgres := database == dialect.MySQLName, database == dialect.SQLiteName, database == dialect.PostgresName
	for rest := query; rest != ""; {
		p := part{at: len(query) - len(rest)}
		switch c := rest[0]; {
		case c <= ' ':
			rest = rest[1:]
			continue
		case strings.HasPrefix(rest, "--"), c == '#' && mysql:
			_, rest, _ = strings.Cut(rest, "\n")
			continue
		case strings.HasPrefix(rest, "/*"):
			_, rest, _ = strings.Cut(rest[2:], "*/")
			continue
		case c == '\'':
			_, rest = unquote(rest, c, mysql || postgres && all.is(len(all)-1, "E"))
		case c == '"', c == '`':
			p.name, p.quoted = true, true
			p.text, rest = unquote(rest, c, mysql && c == '"') // it may be a literal
		case c == '[' && sqlite:
			p.name, p.quoted = true, true
			p.text, rest = unquote(rest, ']', false)
		case postgres && dollars.MatchString(rest):
			tag := dollars.FindString(rest)
			_, rest, _ = strings.Cut(rest[len(tag):], tag)
		default:
			p.text = letters.FindString(rest)
			p.name = p.text != ""
			if !p.name {
				p.text = rest[:1]
			}
			rest = rest[len(p.text):]
		}
		all = append(all, p)
	}
	return all
}

// unquote returns what is in the quotes at the beginning of a text, and what follows them.
func unquote(text string, end byte, escapes bool) (inside, rest string) {
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && escapes:
			i++
		case text[i] != end:
		case strings.HasPrefix(text[i+1:], string(end)): // a doubled one stands for one
			i++
		default:
			return strings.ReplaceAll(text[1:i], strings.Repeat(string(end), 2), string(end)), text[i+1:]
		}
	}
	return text[1:], ""
}
