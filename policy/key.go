package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/inbox"
)

// inboxKey returns k for the middlewares. It asks named for the keys that k names.
func (k Key) inboxKey(named func(name string) (inbox.Key, error)) (inbox.Key, error) {
	key, err := parseKey(k.From, named)
	if err != nil {
		return inbox.Key{}, err
	}
	switch k.Within {
	case "":
	case "topic":
		key = key.WithinTopic()
	case "type":
		key = key.WithinType()
	default:
		return inbox.Key{}, fmt.Errorf("key.within %q is not one of topic, type", k.Within)
	}
	if k.Optional {
		key = inbox.FirstOf(key, inbox.ByUUID())
	}
	return key, nil
}

// parseKey parses Key.From or OrderKey. Empty means uuid.
func parseKey(from string, named func(name string) (inbox.Key, error)) (inbox.Key, error) {
	if from == "" {
		return inbox.ByUUID(), nil
	}
	var keys []inbox.Key
	for part := range strings.SplitSeq(from, "+") {
		key, err := parseOneKey(strings.TrimSpace(part), named)
		if err != nil {
			return inbox.Key{}, err
		}
		keys = append(keys, key)
	}
	if len(keys) == 1 {
		return keys[0], nil
	}
	return inbox.Joined(keys...), nil
}

func parseOneKey(from string, named func(name string) (inbox.Key, error)) (inbox.Key, error) {
	kind, of, _ := strings.Cut(from, ":")
	switch {
	case from == "uuid":
		return inbox.ByUUID(), nil
	case from == "payload":
		return inbox.ByPayload(), nil
	case from == "cloudevent":
		return inbox.ByCloudEvent(), nil
	case kind == "metadata" && of != "":
		if strings.TrimSpace(of) != of {
			return inbox.Key{}, fmt.Errorf("%q has a space after the colon: remove it", from)
		}
		return inbox.ByMetadata(of), nil
	case kind == "json" && of != "":
		paths, err := parsePaths(of)
		return inbox.ByJSON(paths...), err
	case kind == "func" && of != "":
		return named(of)
	}
	return inbox.Key{}, fmt.Errorf("%q is not a key: write uuid, payload, cloudevent, metadata:FIELD, json:PATH, "+
		"or func:NAME, and several with + between them", from)
}

// inboxVersion returns v for the version gate. It asks named for the functions that v names.
func (v Version) inboxVersion(named func(name string) (inbox.VersionFunc, error)) (inbox.VersionFunc, error) {
	kind, of, _ := strings.Cut(v.From, ":")
	switch {
	case v.From == "" || v.From == "metadata":
		return inbox.VersionFromMetadata(), nil
	case v.From == "cloudevent":
		return inbox.VersionFromCloudEvent(), nil
	case kind == "json":
		paths, err := parsePaths(of)
		if err != nil {
			return nil, err
		}
		if len(paths) != 2 {
			return nil, fmt.Errorf("%q is not a version: write json:AGGREGATE,VERSION, two paths", v.From)
		}
		return inbox.VersionFromJSON(paths[0], paths[1]), nil
	case kind == "func" && of != "":
		return named(of)
	}
	return nil, fmt.Errorf("%q is not a version: write metadata, cloudevent, json:AGGREGATE,VERSION, or func:NAME", v.From)
}

var errEmptyPath = errors.New("a path of json: is empty: separate paths with a comma, such as json:order.id,line")

func parsePaths(text string) ([]string, error) {
	var paths []string
	for path := range strings.SplitSeq(text, ",") {
		path = strings.TrimSpace(path)
		if path == "" {
			return nil, errEmptyPath
		}
		paths = append(paths, path)
	}
	return paths, nil
}
