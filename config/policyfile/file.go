package policyfile

import (
	"bytes"
	"cmp"
	_ "embed" // for the schema
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/config"
)

//go:embed policies.schema.json
var schema []byte

// JSONSchema is the schema of policy files, for editors and other checks: policies.schema.json in
// this directory. It knows names, types, choices and the bounds of numbers. How long a duration may
// be, which error types make sense, and what concerns several fields, such as a backoff without
// retries, only Parse knows.
func JSONSchema() []byte { return bytes.Clone(schema) }

// Load reads policies from a file, YAML or JSON, and validates them. It reports all problems in one
// error, as joined [*config.FieldError]s with file and line:
//
//	retry.yaml:7: topics["orders"].delays[2]: too short: must be at least 1ms, got 500µs
//
// docs/reference/policy-files.md says what a file can say.
func Load(path string) (config.Policies, error) {
	file, err := os.Open(path)
	if err != nil {
		return config.Policies{}, fmt.Errorf("cannot load policies: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return config.Policies{}, fmt.Errorf("cannot load policies: %w", err)
	}
	return parse(data, path, os.Environ())
}

// Parse reads policies from YAML or JSON and validates them, as [Load] does, but is pure: errors
// have lines only.
func Parse(data []byte) (config.Policies, error) { return parse(data, "", nil) }

func parse(data []byte, file string, environ []string) (config.Policies, error) {
	var policies config.Policies
	d := decoder{anchors: map[string]*node{}, lines: map[string]int{}, failed: map[string]bool{}}
	if root := d.read(data); root != nil {
		d.decode(root, reflect.ValueOf(&policies).Elem(), "", root.line)
		d.validate(policies)
	}
	d.refuseVariables(environ)
	if len(d.errs) == 0 {
		return policies, nil
	}
	slices.SortStableFunc(d.errs, func(a, b *config.FieldError) int { return cmp.Compare(a.Line, b.Line) })
	errs := make([]error, len(d.errs))
	for i, err := range d.errs {
		err.File, errs[i] = file, err
	}
	return config.Policies{}, errors.Join(errs...)
}

// refuseVariables tells of variables by which version 0.1 overrode single fields. To ignore them
// would change the policies of a service in silence.
func (d *decoder) refuseVariables(environ []string) {
	for _, assignment := range environ {
		if name, _, _ := strings.Cut(assignment, "="); strings.HasPrefix(name, "AMQPRETRY__") {
			d.fail(name, 0, "unknown variable: the environment does not override fields", "left out, with its "+
				"value in the file", "")
		}
	}
}
