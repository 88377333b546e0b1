package policy

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"
)

// String returns the suggestion as a policy file, with the reasons as comments.
func (s Suggestion) String() string {
	text := func(value string) *yaml.Node {
		n := &yaml.Node{}
		n.SetString(value)
		return n
	}
	group := func(in *yaml.Node, name string) *yaml.Node {
		fields := &yaml.Node{Kind: yaml.MappingNode}
		in.Content = append(in.Content, text(name), fields)
		return fields
	}
	file := &yaml.Node{Kind: yaml.MappingNode}
	rules := group(group(file, "consumers"), s.Consumer)
	inner, of := (*yaml.Node)(nil), ""
	for name, value := range s.Rules.fields() {
		if value.IsZero() {
			continue
		}
		in := rules
		if before, after, nested := strings.Cut(name, "."); nested {
			if before != of {
				inner, of = group(rules, before), before
			}
			in, name = inner, after
		}
		n := &yaml.Node{}
		_ = n.Encode(value.Interface()) // cannot fail: strings, numbers and durations
		in.Content = append(in.Content, text(name), n)
	}
	for _, why := range s.Why {
		file.HeadComment += comment(s.Consumer + ": " + why)
	}
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	_ = encoder.Encode(file) // into memory
	return b.String()
}

// comment returns text as comment lines that fit a screen.
func comment(text string) string {
	const width = 120
	var b strings.Builder
	line := "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > width {
			b.WriteString(line + "\n")
			line = "#  "
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
	return b.String()
}
