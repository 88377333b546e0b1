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

// form is what a key is made of: named parts, and how they become one. The zero form has no
// parts, and cannot be made without a message.
type form struct {
	names []string
	make  func(parts []string) (string, error)
}

// Parts names what a key is made of that is not taken from a message, in the order in which
// [Imported.Key] has them: "ce_source" and "ce_id" for [ByCloudEvent]. It is empty for [FirstOf].
func (k Key) Parts() []string { return slices.Clone(k.withDefault().form.names) }

// made returns the key that has these parts.
func (k Key) made(parts []string) (string, error) {
	k = k.withDefault()
	if k.form.make == nil {
		return "", fmt.Errorf("a key that is %s cannot be told from its parts", k.source)
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

// leaf is a key of one part.
func leaf(name string, valid func(string) (string, error)) form {
	return form{[]string{name}, func(parts []string) (string, error) {
		value, err := valid(parts[0])
		if err != nil {
			return "", fmt.Errorf("%w: %s %w", errNoKey, name, err)
		}
		return value, nil
	}}
}

// join is a key that is joined of others.
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

// place is a key made of a [Position].
var place = join(leaf("topic", text), leaf("partition", text), leaf("offset", offset))

// fields is a key made of fields of a JSON payload.
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

// text refuses what a message's UUID and metadata do not hold.
func text(value string) (string, error) {
	switch {
	case value == "":
		return "", errors.New("is empty")
	case !utf8.ValidString(value) || strings.ContainsRune(value, 0):
		return "", fmt.Errorf("is %d bytes that are no text: have the source write it as messages bring it", len(value))
	case strings.TrimSpace(value) != value:
		return "", fmt.Errorf("%q has space around it", value)
	}
	return value, nil
}

func digest(value string) (string, error) {
	if sum, err := hex.DecodeString(value); err != nil || len(sum) != 32 || strings.ToLower(value) != value {
		return "", fmt.Errorf("%q is no SHA-256 in lower-case hexadecimal", value)
	}
	return value, nil
}

func offset(value string) (string, error) {
	if n, err := strconv.ParseInt(value, 10, 64); err != nil || strconv.FormatInt(n, 10) != value {
		return "", fmt.Errorf("%q is no offset", value)
	}
	return value, nil
}

// literal is a value as it stands in JSON: there, 17 and "17" differ.
func literal(value string) (string, error) {
	root, err := decodeJSON([]byte(value))
	if err == nil && json.Valid([]byte(value)) { // nothing stands behind it
		switch v := root.(type) {
		case string:
			return "s" + v, nil
		case json.Number:
			return "n" + v.String(), nil
		case bool:
			return "b" + strconv.FormatBool(v), nil
		}
	}
	return "", fmt.Errorf("%q is no text, number or boolean as it stands in JSON, where text has quotation marks", value)
}
