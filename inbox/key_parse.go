package inbox

import (
	"fmt"
	"strconv"
	"strings"
)

// parseKey returns the key with this description, as [Key.String] writes it.
func parseKey(description string) (Key, error) {
	p := &keyParser{rest: description}
	k, ok := p.key()
	if !ok || p.rest != "" {
		return Key{}, fmt.Errorf("inbox: %q is not a key, near %q: write it as millrace check shows it, "+
			"such as uuid or metadata:\"order_id\"", description, p.rest)
	}
	return k, nil
}

type keyParser struct{ rest string }

// take consumes word, if the rest begins with it.
func (p *keyParser) take(word string) bool {
	rest, found := strings.CutPrefix(p.rest, word)
	if found {
		p.rest = rest
	}
	return found
}

// key parses a key and its qualifiers.
func (p *keyParser) key() (Key, bool) {
	k, ok := p.base()
	for ok {
		switch {
		case p.take("/topic"):
			k = k.WithinTopic()
		case p.take("/type"):
			k = k.WithinType()
		default:
			return k, true
		}
	}
	return k, false
}

func (p *keyParser) base() (k Key, ok bool) {
	switch {
	case p.take("uuid"):
		return ByUUID(), true
	case p.take("cloudevent"):
		return ByCloudEvent(), true
	case p.take("payload"):
		return ByPayload(), true
	case p.take("position"):
		return ByPosition(nil), true
	case p.take("metadata:"):
		field, ok := p.quoted()
		return ByMetadata(field), ok
	case p.take("func:"):
		name, ok := p.quoted()
		return ByFunc(name, nil), ok
	case p.take("json:"):
		return p.json()
	case p.take("joined("):
		keys, ok := p.list()
		return Joined(keys...), ok
	case p.take("first("):
		keys, ok := p.list()
		return FirstOf(keys...), ok
	}
	return Key{}, false
}

func (p *keyParser) quoted() (string, bool) {
	quoted, err := strconv.QuotedPrefix(p.rest)
	if err != nil {
		return "", false
	}
	value, err := strconv.Unquote(quoted)
	p.rest = p.rest[len(quoted):]
	return value, err == nil
}

func (p *keyParser) json() (Key, bool) {
	var paths []string
	for {
		path, ok := p.quoted()
		if !ok {
			return Key{}, false
		}
		paths = append(paths, path)
		if !strings.HasPrefix(p.rest, `,"`) {
			return ByJSON(paths...), true
		}
		p.take(",")
	}
}

// list parses keys up to the end of their list.
func (p *keyParser) list() (keys []Key, ok bool) {
	for !p.take(")") {
		if len(keys) > 0 && !p.take(",") {
			return nil, false
		}
		k, ok := p.key()
		if !ok {
			return nil, false
		}
		keys = append(keys, k)
	}
	return keys, true
}
