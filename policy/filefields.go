package policy

import (
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// field is a name and its value in a mapping.
type field struct {
	name  string
	key   *yaml.Node
	value *yaml.Node
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// fields decodes a mapping into the fields of a struct.
func (d *decoder) fields(n *yaml.Node, v reflect.Value, path string) {
	known := keysOf(v.Type())
	for _, f := range d.mapping(n, path, "fields such as "+known[0]) {
		at := below(path, f.name)
		i := slices.IndexFunc(known, func(name string) bool { return name == f.name })
		if i < 0 {
			d.problem(f.key.Line, at, "unknown field%s", wayOutOf(f.name, v.Type(), known))
			continue
		}
		d.from.lines[at] = f.key.Line
		d.decode(f.value, v.Field(indexOf(v.Type(), f.name)), at)
	}
}

// indexOf returns the index of the field of t that a file calls name.
func indexOf(t reflect.Type, name string) int {
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("yaml") == name {
			return i
		}
	}
	return -1
}

// wayOutOf suggests what an unknown field was meant to be.
func wayOutOf(name string, in reflect.Type, known []string) string {
	rules := reflect.TypeFor[Rules]()
	name = strings.ReplaceAll(strings.ToLower(name), "-", "_")
	if near := nearest(name, known); near != "" && distance(name, near) < 2 {
		return didYouMean(name, known)
	}
	if in == rules {
		for i := range rules.NumField() {
			if t := rules.Field(i).Type; t.Kind() == reflect.Struct && slices.Contains(keysOf(t), name) {
				return ": it belongs below " + rules.Field(i).Tag.Get("yaml")
			}
		}
	} else if slices.Contains(keysOf(rules), name) {
		if in == reflect.TypeFor[Policy]() {
			return ": it belongs below defaults, or below the name of a handler in consumers"
		}
		return ": it belongs to the consumer: indent it less"
	}
	if near := didYouMean(name, known); near != "" {
		return near
	}
	return "; there are " + strings.Join(known, ", ")
}

// consumers decodes the rules of each handler.
func (d *decoder) consumers(n *yaml.Node, v reflect.Value, path string) {
	all := make(map[string]Rules)
	for _, f := range d.mapping(n, path, "the names of handlers with their rules") {
		at := below(path, f.name)
		d.from.lines[at] = f.key.Line
		if f.name == "" {
			d.problem(f.key.Line, at, "the name of the handler is missing: write its name in the router")
			continue
		}
		var rules Rules
		d.decode(f.value, reflect.ValueOf(&rules).Elem(), at)
		all[f.name] = rules
	}
	v.Set(reflect.ValueOf(all))
}

// mapping returns the fields of a mapping: its own, then those that it merges.
func (d *decoder) mapping(n *yaml.Node, path, what string) []field {
	if n.Kind != yaml.MappingNode {
		d.problem(n.Line, path, "must be %s, not %s", what, kindOf(n))
		return nil
	}
	d.merging[n] = true
	defer delete(d.merging, n)
	var all []field
	var merged []*yaml.Node
	lines := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := resolve(n.Content[i])
		switch {
		case key.ShortTag() == "!!merge":
			merged = append(merged, n.Content[i+1])
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null":
			d.beside(n.Content[i].Line, path, "a name must be a text, not %s", kindOf(key))
		case lines[key.Value] > 0:
			d.problem(n.Content[i].Line, below(path, key.Value), "is written twice, first on line %d: leave one out", lines[key.Value])
		default:
			lines[key.Value] = max(n.Content[i].Line, 1)
			all = append(all, field{key.Value, n.Content[i], n.Content[i+1]})
		}
	}
	for _, m := range merged {
		for _, f := range d.merge(m, path, what) {
			if lines[f.name] == 0 {
				lines[f.name] = max(f.key.Line, 1)
				all = append(all, f)
			}
		}
	}
	return all
}

// maxMerges limits how far mappings that merge each other can grow.
const maxMerges = 10_000

// merge returns the fields that << merges: those of a mapping, or of a list of mappings.
func (d *decoder) merge(n *yaml.Node, path, what string) []field {
	mappings := []*yaml.Node{resolve(n)}
	if mappings[0].Kind == yaml.SequenceNode {
		mappings = mappings[0].Content
	}
	var all []field
	for _, m := range mappings {
		m = resolve(m)
		if d.merging[m] {
			d.problem(n.Line, path, "<< merges a mapping into itself: write the fields out")
			continue
		}
		if d.merges++; d.merges > maxMerges {
			if d.merges == maxMerges+1 {
				d.problem(n.Line, path, "<< is followed more than %d times in this file: write the fields out", maxMerges)
			}
			return all
		}
		all = append(all, d.mapping(m, path, what)...)
	}
	return all
}
