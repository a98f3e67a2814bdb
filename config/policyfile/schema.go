package policyfile

import _ "embed"

//go:embed policies.schema.json
var schema []byte

// JSONSchema is the schema of policy files, for editors and other checks: policies.schema.json in
// this directory. It knows names, types, choices and the bounds of numbers. How long a duration may
// be, which error types make sense, and what concerns several fields, such as a backoff without
// retries, only Parse knows.
func JSONSchema() []byte { return append([]byte(nil), schema...) }
