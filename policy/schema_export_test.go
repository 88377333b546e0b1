package policy

import "reflect"

// WordsOf and Means are for the test that makes the schema.
func WordsOf(t reflect.Type) []string { return words[t] }

func Means(s, field string) bool { return Strategy(s).means(field) }

var Withins = withins
