// Package policyschema holds the JSON Schema of policy files to what policy.Read says of the
// same files. It is a module of its own, so that a validator is not among Millrace's own
// dependencies.
package policyschema
