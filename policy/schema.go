package policy

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema returns a JSON Schema of policy files, for editors. It knows the fields, their words
// and which of them a strategy has no use for; what only [Read] finds it lets through.
func Schema() []byte { return append([]byte(nil), schema...) }
