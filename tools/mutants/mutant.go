package main

import (
	"errors"
	"fmt"
	"strings"
)

// Mutant is a fault that tests must find.
type Mutant struct {
	Name string // says the fault
	File string // that Old is in, relative to the root of the repository
	// Package and Run are what go test is given, such as ./internal/wire and ^TestRead$.
	Package, Run string
	Env          []string // such as STRATEGY=native
	Old, New     string   // without the last line break
}

const (
	heading = "=== "
	oldText = "--- old"
	newText = "--- new"
)

// Parse reads the mutants of a file. name is for errors.
//
//	=== The copy of a message counts as confirmed when the broker has returned it
//	file: internal/publish/channel.go
//	test: ./internal/publish
//	run: ^TestForward_Returned$
//	--- old
//		case p.confirmation.Acked() && !returned:
//	--- new
//		case p.confirmation.Acked():
//
// Lines before the first heading are comments. So are lines of a mutant's fields that begin with #.
// A mutant may have several lines "env: NAME=VALUE". Empty lines at the end of a text do not belong
// to it.
func Parse(name, text string) ([]Mutant, error) {
	var all []Mutant
	var part *string // that the next line belongs to; nil for fields
	for i, line := range strings.Split(text, "\n") {
		title, isTitle := strings.CutPrefix(line, heading)
		if isTitle {
			all, part = append(all, Mutant{Name: strings.TrimSpace(title)}), nil
		}
		if len(all) == 0 || isTitle {
			continue
		}
		m := &all[len(all)-1]
		switch {
		case line == oldText:
			part = &m.Old
		case line == newText:
			part = &m.New
		case part != nil:
			*part += line + "\n"
		case strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#"):
			if err := m.field(line); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, i+1, err)
			}
		}
	}
	for i := range all {
		m := &all[i]
		m.Old, m.New = strings.TrimRight(m.Old, "\n"), strings.TrimRight(m.New, "\n")
		if m.Name == "" || m.File == "" || m.Package == "" || m.Run == "" || m.Old == "" {
			return nil, fmt.Errorf("%s: mutant %q needs a name, file, test, run, and an old text", name, m.Name)
		}
	}

	return all, nil
}

func (m *Mutant) field(line string) error {
	key, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	switch key {
	case "file":
		m.File = value
	case "test":
		m.Package = value
	case "run":
		m.Run = value
	case "env":
		m.Env = append(m.Env, value)
	default:
		return fmt.Errorf("%q is none of file, test, run, env", line)
	}

	return nil
}

// Apply returns source with the fault in it.
func (m *Mutant) Apply(source string) (string, error) {
	switch n := strings.Count(source, m.Old); {
	case n != 1:
		return "", fmt.Errorf("the old text is %d times in %s, and must be there once", n, m.File)
	case m.Old == m.New:
		return "", errors.New("the old text and the new one are the same")
	}

	return strings.Replace(source, m.Old, m.New, 1), nil
}
