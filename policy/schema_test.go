package policy_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/policy"
)

type object = map[string]any

// TestSchemaIsThatOfTheStructs makes the schema of the structs, their comments and words.
func TestSchemaIsThatOfTheStructs(t *testing.T) {
	t.Parallel()
	s := schemas{comments(t)}
	rules := reflect.TypeFor[policy.Rules]()
	all := s.structure(reflect.TypeFor[policy.Policy]())
	all["$schema"] = "http://json-schema.org/draft-07/schema#"
	all["$id"] = "https://raw.githubusercontent.com/millrace-go/millrace/main/policy/schema.json"
	all["title"] = "The policy of a Millrace service"
	all["definitions"] = object{"rules": s.rules(rules)}
	want, err := json.MarshalIndent(all, "", "  ")
	require.NoError(t, err)
	want = append(want, '\n')
	if *update {
		require.NoError(t, os.WriteFile("schema.json", want, 0o600))
		return
	}
	assert.True(t, string(want) == string(policy.Schema()), "schema.json is not that of the structs: run with -update")
	policy.Schema()[0] = '!'
	assert.True(t, json.Valid(policy.Schema()))
}

// comments returns the first paragraph of each field's comment, by struct and field.
func comments(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "policy.go", nil, parser.ParseComments)
	require.NoError(t, err)
	all := make(map[string]string)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		fields := spec.Type.(*ast.StructType).Fields.List
		last := ""
		for _, f := range fields {
			if f.Doc != nil {
				text, _, _ := strings.Cut(f.Doc.Text(), "\n\n")
				last = strings.Join(strings.Fields(text), " ")
			}
			all[spec.Name.Name+"."+f.Names[0].Name] = last
		}
		return true
	})
	return all
}

type schemas struct{ comments map[string]string }

func (s schemas) structure(t reflect.Type) object {
	properties := object{}
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("yaml")
		if name == "" {
			continue
		}
		property := s.field(t, f, name)
		if _, reference := property["$ref"]; !reference {
			property["description"] = s.comments[t.Name()+"."+f.Name]
		}
		properties[name] = property
	}
	return object{"type": "object", "additionalProperties": false, "properties": properties}
}

func (s schemas) field(in reflect.Type, f reflect.StructField, name string) object {
	words := policy.WordsOf(f.Type)
	if name == "within" {
		words = policy.Withins
	}
	switch {
	case words != nil:
		return object{"enum": words}
	case name == "defaults":
		return object{"$ref": "#/definitions/rules"}
	case name == "consumers":
		one := object{"anyOf": []object{{"$ref": "#/definitions/rules"}, {"type": "null"}}}
		return object{"type": "object", "propertyNames": object{"minLength": 1, "maxLength": 255}, "additionalProperties": one}
	case f.Type == reflect.TypeFor[policy.Duration]():
		pattern := "^([0-9]+(d|h|m|s|ms))+$"
		if name == "retention" {
			pattern = "^(([0-9]+(d|h|m|s|ms))+|forever)$"
		}
		return object{"type": "string", "pattern": pattern}
	}
	switch f.Type.Kind() {
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Pointer:
		least := 1
		if name == "epoch" || f.Type.Kind() == reflect.Pointer {
			least = 0
		}
		return object{"type": "integer", "minimum": least, "maximum": math.MaxInt32}
	case reflect.Float64:
		return object{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
	case reflect.Struct:
		if short, ok := f.Type.FieldByName("From"); ok { // or from alone
			return object{"anyOf": []object{s.field(f.Type, short, "from"), s.structure(f.Type)}}
		}
		return s.structure(f.Type)
	}
	return s.text(in, name)
}

// text is for what is written as text but is no word.
func (s schemas) text(in reflect.Type, name string) object {
	key := `(uuid|payload|cloudevent|metadata:[^+]+|json:[^+]+|func:[^+]+)`
	patterns := map[string]string{
		"Key.from":        "^ *" + key + "( *\\+ *" + key + ")* *$",
		"Rules.order_key": "^ *" + key + "( *\\+ *" + key + ")* *$",
		"Version.from":    "^(metadata|cloudevent|json:[^,]+,[^,]+|func:.+)$",
	}
	if pattern, is := patterns[in.Name()+"."+name]; is {
		return object{"type": "string", "pattern": pattern}
	}
	return object{"type": "string", "minLength": 1}
}

// rules adds what each strategy has no use for.
func (s schemas) rules(t reflect.Type) object {
	all := s.structure(t)
	var cases []object
	for _, strategy := range policy.WordsOf(reflect.TypeFor[policy.Strategy]()) {
		useless := object{}
		for name, property := range all["properties"].(object) {
			if !policy.Means(strategy, name) {
				useless[name] = false
			} else {
				below := object{}
				for field := range group(property.(object)) {
					if !policy.Means(strategy, name+"."+field) {
						below[field] = false
					}
				}
				if len(below) > 0 {
					useless[name] = object{"properties": below}
				}
			}
		}
		cases = append(cases, object{
			"if":   object{"required": []string{"strategy"}, "properties": object{"strategy": object{"const": strategy}}},
			"then": object{"properties": useless},
		})
	}
	all["allOf"] = cases
	return all
}

// group returns the fields of what is a structure, or may be one.
func group(property object) object {
	if either, is := property["anyOf"].([]object); is {
		property = either[1]
	}
	fields, _ := property["properties"].(object)
	return fields
}

// TestAllWordsAreKnown compares the words with the constants of words.go.
func TestAllWordsAreKnown(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "words.go", nil, 0)
	require.NoError(t, err)
	constants := make(map[string][]string)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && len(spec.Values) == 1 {
			if value, ok := spec.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
				name := spec.Type.(*ast.Ident).Name
				constants[name] = append(constants[name], strings.Trim(value.Value, `"`))
			}
		}
		return true
	})
	rules := reflect.TypeFor[policy.Rules]()
	version := reflect.TypeFor[policy.Version]()
	found := 0
	for _, in := range []reflect.Type{rules, version} {
		for i := range in.NumField() {
			if of := in.Field(i).Type; of.Kind() == reflect.String && of.Name() != "string" {
				found++
				assert.Equal(t, constants[of.Name()], slices.Clone(policy.WordsOf(of)), of.Name())
			}
		}
	}
	assert.Len(t, constants, found)
}
