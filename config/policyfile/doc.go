// Package policyfile reads policies from files, YAML or JSON: [Load] and [Parse].
// docs/reference/policy-files.md says what a file can say, [JSONSchema] says it to editors.
//
//	policies, err := policyfile.Load("retry.yaml") // all errors of the file are in err, with their lines
//
// A program that does not import it compiles no parser of YAML.
package policyfile
