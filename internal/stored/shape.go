package stored

import (
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"regexp"
	"strings"
	"unicode/utf8"
)

// How much of an error is compared.
const (
	mostRead  = 1024 // bytes of its first line
	mostShape = 200  // bytes of the shape
)

// Parts that differ between errors of one shape. Each becomes a question mark.
var (
	quoteText = regexp.MustCompile("\"(?:[^\"\\\\]|\\\\.)*\"|`[^`]*`|(^|[^\\pL\\pN'])'[^']*'")
	uuidText  = regexp.MustCompile(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)
	wordText  = regexp.MustCompile(`[\pL\pN]+`)
	hexText   = regexp.MustCompile(`^[0-9a-fA-F]+$`)
	digitText = regexp.MustCompile(`\pN+`)
	unknowns  = regexp.MustCompile(`[+-]?\?([.,:]?[+-]?\?)*`)
	spaceText = regexp.MustCompile(`[\s\x00-\x1f]+`)
)

// Shape returns what errors of one cause have in common: the first line that is not blank, in which
// a question mark replaces each quoted text, UUID, number, time, address, hex number with a digit,
// and each other word with a digit that begins with one or is as long as an id. In other words it
// replaces only the digits. Text beyond 200 bytes is dropped. The shape of a shape is the shape
// itself.
func Shape(text string) string {
	text = strings.ToValidUTF8(text, "?")
	for line := range strings.Lines(text) {
		if text = strings.TrimSpace(line); text != "" {
			break
		}
	}
	text = cut(text, mostRead)
	for {
		next := simpler(text)
		if next == text { // each round leaves fewer bytes, or fewer digits
			return text
		}
		text = next
	}
}

func simpler(text string) string {
	text = quoteText.ReplaceAllString(text, "$1?")
	text = uuidText.ReplaceAllString(text, "?")
	text = wordText.ReplaceAllStringFunc(text, simplerWord)
	text = unknowns.ReplaceAllString(text, "?")
	text = spaceText.ReplaceAllString(text, " ")
	return strings.TrimSpace(cut(strings.TrimSpace(text), mostShape))
}

// simplerWord replaces the numbers in a word.
func simplerWord(word string) string {
	const idLength = 16
	at := digitText.FindStringIndex(word)
	switch {
	case at == nil:
		return word
	case at[0] == 0, len(word) >= idLength, hexText.MatchString(word):
		return "?"
	}
	return digitText.ReplaceAllString(word, "?")
}

// cut returns whole characters from the start of text, at most n bytes.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Group returns the number that identifies errors of one shape, NULL for an empty shape.
func Group(text []byte) sql.NullInt64 {
	shape := Shape(string(text))
	if shape == "" {
		return sql.NullInt64{}
	}
	sum := sha256.Sum256([]byte(shape))
	group := int64(binary.BigEndian.Uint64(sum[:8]) >> 1) //nolint:gosec // without the sign
	return sql.NullInt64{Int64: max(group, 1), Valid: true}
}
