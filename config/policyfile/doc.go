// Package policyfile reads policies from files, YAML or JSON, and from the environment: [Load],
// [Parse] and [Override]. docs/reference/policy-files.md says what a file can say, [JSONSchema]
// says it to editors.
//
//	policies, err := policyfile.Load("retry.yaml") // file, environment, bounds: everything that is wrong is in err
//
// A program that does not import it compiles no parser of YAML.
package policyfile
