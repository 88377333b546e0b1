package policy

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema returns a JSON Schema of policy files, for editors. It knows the fields, their values, and
// the fields that a strategy does not use. It accepts some files in which [Read] finds problems.
func Schema() []byte { return append([]byte(nil), schema...) }
