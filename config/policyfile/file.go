package policyfile

import (
	"fmt"
	"io"
	"os"
	"reflect"

	"github.com/amqpretry/watermill-retry/config"
)

// Load reads policies from a file, YAML or JSON, overrides single fields with what the environment
// says ([Override]), and validates the result. It reports all problems in one error, as joined
// [*config.FieldError]s with file and line, or with the variable:
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
	return load(data, path, os.Environ())
}

// Parse reads policies from YAML or JSON and validates them, as [Load] does, but is pure: it knows
// neither a file, so that errors have lines only, nor the environment.
func Parse(data []byte) (config.Policies, error) { return load(data, "", nil) }

func load(data []byte, file string, environ []string) (config.Policies, error) {
	tree, errs := readTree(data)
	if tree == nil && len(errs) > 0 {
		return config.Policies{}, joined(errs, file)
	}
	d, policies := newDecoder(), config.Policies{}
	d.errs = errs
	if tree != nil {
		d.decode(tree, reflect.ValueOf(&policies).Elem(), "", source{line: tree.line})
	}
	policies = d.override(policies, environ)
	if err := d.validate(policies, file); err != nil {
		return config.Policies{}, err
	}
	return policies, nil
}
