package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace-go/millrace/inbox"
)

// inboxKey is what the middlewares take of k. Keys that k names are asked of named.
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
		return inbox.Key{}, fmt.Errorf("key.within %q is none of topic, type", k.Within)
	}
	if k.Optional {
		key = inbox.FirstOf(key, inbox.ByUUID())
	}
	return key, nil
}

// parseKey reads what Key.From and OrderKey say. Nothing is uuid.
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
			return inbox.Key{}, fmt.Errorf("%q has a space behind the colon, and no field is called so: leave it out", from)
		}
		return inbox.ByMetadata(of), nil
	case kind == "json" && of != "":
		paths, err := parsePaths(of)
		return inbox.ByJSON(paths...), err
	case kind == "func" && of != "":
		return named(of)
	}
	return inbox.Key{}, fmt.Errorf("%q is no key: write uuid, payload, cloudevent, metadata:FIELD, json:PATH, "+
		"or func:NAME, and several with + between them", from)
}

// inboxVersion is what the version gate takes of v. Functions that v names are asked of named.
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
			return nil, fmt.Errorf("%q is no version: write json:AGGREGATE,VERSION, two paths", v.From)
		}
		return inbox.VersionFromJSON(paths[0], paths[1]), nil
	case kind == "func" && of != "":
		return named(of)
	}
	return nil, fmt.Errorf("%q is no version: write metadata, cloudevent, json:AGGREGATE,VERSION, or func:NAME", v.From)
}

var errEmptyPath = errors.New("a path of json: is empty: write them with a comma between, such as json:order.id,line")

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
