package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// outputs are the forms of results.
var outputs = []string{"text", "wide", "json", "yaml", "csv"}

// understandGlobals refuses values that no command takes.
func (a *app) understandGlobals(cmd *cobra.Command) error {
	switch {
	case a.flags.timeout <= 0:
		return usagef("--timeout %v leaves no time for anything: give more, such as 30s", a.flags.timeout)
	case !slices.Contains(outputs, a.flags.output):
		return usagef("--output %s: there are text, wide, json, yaml and csv", a.flags.output)
	case a.flags.json && a.flags.output != "text" && a.flags.output != "json":
		return usagef("--json and --output %s exclude each other", a.flags.output)
	case a.flags.json:
		a.flags.output = "json"
	case a.flags.output == "csv" && cmd.CommandPath() != "millrace audit":
		return usagef("--output csv is for millrace audit")
	}
	return notEmpty(cmd, selecting...)
}

// forPeople reports whether results are text, and not for programs.
func (a *app) forPeople() bool { return a.flags.output != "json" && a.flags.output != "yaml" }

// print writes v as JSON or YAML if the user asked for that, else the text.
func (a *app) print(v any, text func() string) error {
	if a.forPeople() {
		a.printf("%s", text())
		return nil
	}
	if a.several {
		v = map[string]any{"database": a.at.name, "result": v}
	}
	return a.document(v)
}

// document writes v as JSON or YAML.
func (a *app) document(v any) error {
	body, err := json.MarshalIndent(v, "", "  ")
	if err == nil && a.flags.output == "yaml" {
		body, err = yamlOf(body)
	}
	if err != nil {
		return err
	}
	a.printf("%s\n", bytes.TrimSuffix(body, []byte("\n")))
	return nil
}

// unprintable are the characters that JSON may have as they are, and YAML may not.
var unprintable = regexp.MustCompile(`[\x{7f}-\x{9f}\x{feff}\x{fffe}\x{ffff}]`)

// yamlOf returns JSON as a document of YAML, with the fields in the same order. It is YAML already, in another style.
func yamlOf(body []byte) ([]byte, error) {
	body = unprintable.ReplaceAllFunc(body, func(char []byte) []byte {
		r, _ := utf8.DecodeRune(char)
		return fmt.Appendf(nil, `\u%04x`, r)
	})
	var doc yaml.Node
	if err := yaml.Unmarshal(body, &doc); err != nil {
		return nil, err
	}
	plain(&doc)
	out := bytes.NewBufferString("---\n")
	to := yaml.NewEncoder(out)
	to.SetIndent(2)
	err := to.Encode(&doc)
	return out.Bytes(), err
}

// plain removes the style of JSON; what YAML would read as something else stays in quotation marks.
func plain(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		plain(child)
	}
}
