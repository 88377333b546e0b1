package policy

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decode sets v from n, or reports why it cannot.
func (d *decoder) decode(n *yaml.Node, v reflect.Value, path string) {
	n = resolve(n)
	if n.Tag != "" && n.Tag[0] == '!' && !strings.HasPrefix(n.Tag, "!!") {
		d.problem(n.Line, path, "the tag %s means nothing here: leave it out", n.Tag)
		return
	}
	if isNull(n) && v.Type() != reflect.TypeFor[Rules]() || isNull(n) && path == "defaults" {
		d.problem(n.Line, path, "has no value: write one, or leave the line out; if the next lines belong to it, indent them more")
		return
	}
	switch v.Addr().Interface().(type) {
	case *Policy:
		d.fields(n, v, path)
	case *Rules:
		if !isNull(n) {
			d.fields(n, v, path)
		}
	case *Key, *Version: // may be written as a string, which is from
		if n.Kind == yaml.ScalarNode {
			d.decode(n, v.FieldByName("From"), path)
			d.broken[below(path, "from")] = d.broken[path]
			return
		}
		d.fields(n, v, path)
	case *map[string]Rules:
		d.consumers(n, v, path)
	default:
		d.value(n, v, path)
	}
}

// value sets v, which is neither a struct nor a map.
func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if allowed, is := words[v.Type()]; is {
		d.word(n, v, path, allowed)
		return
	}
	if v.Kind() == reflect.Struct {
		d.fields(n, v, path)
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		d.number(n, v.Elem(), path, true)
		return
	}
	switch v.Addr().Interface().(type) {
	case *Duration:
		d.duration(n, v, path)
	case *bool:
		if !d.isA(n, path, "true or false", "!!bool") {
			return
		}
		d.set(n, v, path)
	case *int:
		d.number(n, v, path, strings.HasSuffix(path, ".epoch"))
	case *float64:
		d.share(n, v, path)
	case *string:
		switch {
		case !d.isA(n, path, "text: put it in quotes", "!!str"):
		case n.Value == "":
			d.problem(n.Line, path, "is empty: write a text, or leave the line out")
		default:
			v.SetString(n.Value)
		}
	default:
		panic(fmt.Sprintf("policy: no file can say a %s", v.Type())) // a new type in Rules
	}
}

func (d *decoder) word(n *yaml.Node, v reflect.Value, path string, allowed []string) {
	switch {
	case n.Kind != yaml.ScalarNode:
		d.problem(n.Line, path, "must be one of %s, not %s", strings.Join(allowed, ", "), kindOf(n))
	case !slices.Contains(allowed, n.Value):
		d.problem(n.Line, path, "%s", notAWord(n.Value, allowed))
	default:
		v.SetString(n.Value)
	}
}

func (d *decoder) duration(n *yaml.Node, v reflect.Value, path string) {
	if n.ShortTag() == "!!int" || n.ShortTag() == "!!float" {
		d.problem(n.Line, path, "%s has no unit: write %ss, %sm, %sh or %sd for seconds, minutes, hours or days",
			n.Value, n.Value, n.Value, n.Value, n.Value)
		return
	}
	if !d.isA(n, path, "a duration such as 90s, 12h or 7d", "!!str") {
		return
	}
	span, err := ParseDuration(n.Value)
	switch {
	case err != nil:
		d.problem(n.Line, path, "%v", err)
	case span == 0:
		d.problem(n.Line, path, "%s means the same as leaving it out: leave it out, or write more", n.Value)
	default:
		v.SetInt(int64(span))
	}
}

func (d *decoder) number(n *yaml.Node, v reflect.Value, path string, zero bool) {
	if n.ShortTag() == "!!float" && !strings.ContainsAny(n.Value, ".eE") {
		d.problem(n.Line, path, "%s is out of range: write less", n.Value)
		return
	}
	if !d.isA(n, path, "a whole number", "!!int") || !d.set(n, v, path) {
		return
	}
	if n.Value != strconv.FormatInt(v.Int(), 10) {
		d.problem(n.Line, path, "YAML reads %s as %d: write that, or the number that you mean", n.Value, v.Int())
		return
	}
	if v.Int() == 0 && !zero {
		d.problem(n.Line, path, "0 means the same as leaving it out: leave it out, or write more")
	}
}

func (d *decoder) share(n *yaml.Node, v reflect.Value, path string) {
	if !d.isA(n, path, "a share such as 0.05 for 5%", "!!int", "!!float") || !d.set(n, v, path) {
		return
	}
	if v.Float() == 0 {
		d.problem(n.Line, path, "0 makes no alert: leave it out, or write a small share such as 0.001")
	}
	if math.IsNaN(v.Float()) || math.IsInf(v.Float(), 0) {
		d.problem(n.Line, path, "%s is not a share: write a number between 0 and 1, such as 0.05", n.Value)
		v.SetFloat(0)
	}
}

// set lets yaml convert a scalar of v's type.
func (d *decoder) set(n *yaml.Node, v reflect.Value, path string) bool {
	if err := n.Decode(v.Addr().Interface()); err != nil {
		d.problem(n.Line, path, "%s is out of range: write less", n.Value)
		return false
	}
	return true
}

// isA reports a problem, and returns false, if n has none of the types.
func (d *decoder) isA(n *yaml.Node, path, what string, tags ...string) bool {
	if n.Kind == yaml.ScalarNode && slices.Contains(tags, n.ShortTag()) {
		return true
	}
	d.problem(n.Line, path, "must be %s, not %s", what, kindOf(n))
	return false
}

// kindOf describes a node in an error.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return n.Value
	case "!!str":
		return fmt.Sprintf("the text %q", n.Value)
	}
	return fmt.Sprintf("%q", n.Value)
}
