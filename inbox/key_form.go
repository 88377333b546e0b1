package inbox

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace-go/millrace/internal/keycode"
)

// form builds a key from named parts. The zero form has no parts: its key needs a message.
type form struct {
	names []string
	make  func(parts []string) (string, error)
}

// Parts returns the names of the parts that make up k, in the order in which admin.Imported.Key has
// them: "ce_source" and "ce_id" for [ByCloudEvent]. It is empty for [FirstOf], which has no fixed parts.
func (k Key) Parts() []string { return slices.Clone(k.withDefault().form.names) }

// made builds the key from these parts.
func (k Key) made(parts []string) (string, error) {
	k = k.withDefault()
	if k.form.make == nil {
		return "", fmt.Errorf("a key that is %s cannot be built from parts", k.source)
	}
	if want := k.form.names; len(parts) != len(want) {
		return "", fmt.Errorf("%w: it has %d parts, and %s has %d: %s", errNoKey, len(parts), k.source, len(want),
			strings.Join(want, ", "))
	}
	key, err := k.form.make(parts)
	if err == nil && key == "" {
		err = fmt.Errorf("%w: %s is empty", errNoKey, k.source)
	}
	return key, err
}

// leaf is the form of a key of one part.
func leaf(name string, valid func(string) (string, error)) form {
	return form{[]string{name}, func(parts []string) (string, error) {
		value, err := valid(parts[0])
		if err != nil {
			return "", fmt.Errorf("%w: %s %w", errNoKey, name, err)
		}
		return value, nil
	}}
}

// join is the form of a key that joins others.
func join(forms ...form) form {
	var whole form
	for _, f := range forms {
		if f.make == nil {
			return form{}
		}
		whole.names = append(whole.names, f.names...)
	}
	whole.make = func(parts []string) (string, error) {
		all := make([]string, 0, len(forms))
		for _, f := range forms {
			part, err := f.make(parts[:len(f.names)])
			if err != nil {
				return "", err
			}
			all, parts = append(all, part), parts[len(f.names):]
		}
		return keycode.Join(all...), nil
	}
	return whole
}

// place is the form of [ByPosition].
var place = join(leaf("topic", text), leaf("partition", text), leaf("offset", offset))

// fields returns the form of [ByJSON].
func fields(paths []string) form {
	if len(paths) == 0 {
		return form{}
	}
	all := make([]form, 0, len(paths))
	for _, path := range paths {
		all = append(all, leaf(path, literal))
	}
	return join(all...)
}

func anything(value string) (string, error) {
	if value == "" {
		return "", errors.New("is empty")
	}
	return value, nil
}

// text refuses values that a message's UUID and metadata do not hold.
func text(value string) (string, error) {
	switch {
	case value == "":
		return "", errors.New("is empty")
	case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
		return "", fmt.Errorf("is %d bytes, but not text: have the source write it as it is in messages", len(value))
	case strings.TrimSpace(value) != value:
		return "", fmt.Errorf("%q begins or ends with white space", value)
	}
	return value, nil
}

func digest(value string) (string, error) {
	if sum, err := hex.DecodeString(value); err != nil || len(sum) != 32 || strings.ToLower(value) != value {
		return "", fmt.Errorf("%q is not a SHA-256 in lower-case hexadecimal", value)
	}
	return value, nil
}

func offset(value string) (string, error) {
	if n, err := strconv.ParseInt(value, 10, 64); err != nil || strconv.FormatInt(n, 10) != value {
		return "", fmt.Errorf("%q is not an offset", value)
	}
	return value, nil
}

// literal returns the part for a value in JSON notation, in which 17 and "17" differ.
func literal(value string) (string, error) {
	root, err := decodeJSON([]byte(value))
	if err == nil {
		switch v := root.(type) {
		case string:
			if garbled(v, []byte(value)) {
				return "", fmt.Errorf("%q has a character that is no Unicode", value)
			}
			return "s" + v, nil
		case json.Number:
			return "n" + v.String(), nil
		case bool:
			return "b" + strconv.FormatBool(v), nil
		}
	}
	return "", fmt.Errorf("%q is not a JSON string, number or boolean: a string needs its quotation marks", value)
}
