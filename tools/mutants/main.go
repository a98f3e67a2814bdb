// Command mutants puts faults into the code, one at a time, and runs the tests that must find them.
// It does not touch the working tree: go test gets the file with the fault by -overlay. Its exit
// code is 1 unless tests fail because of each fault.
//
//	make mutants MUTANTS=regexp REPORT=report.md
//
// TESTFLAGS has more flags for go test, such as -short.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	match := flag.String("match", "", "regexp for the mutants to run, by name or file")
	report := flag.String("report", "", "file to write a table to")
	root := flag.String("root", ".", "root of the repository")
	list := flag.Bool("list", false, "check that the mutants apply, and list them")
	flag.Parse()
	results, err := run(os.Stdout, *root, *match, *list, flag.Args())
	if err == nil && *report != "" {
		err = os.WriteFile(*report, []byte(Table(results)), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || slices.ContainsFunc(results, func(r Result) bool { return r.Verdict != Killed }) {
		os.Exit(1)
	}
}

func run(out io.Writer, root, match string, list bool, files []string) ([]Result, error) {
	mutants, err := read(files, match)
	if err != nil {
		return nil, err
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()

	r := runner{root: root, folder: folder, flags: strings.Fields(os.Getenv("TESTFLAGS"))}
	if list {
		return r.list(out, mutants)
	}
	if err := r.unmutated(out, mutants); err != nil {
		return nil, err
	}
	var results []Result
	for _, m := range mutants {
		began := time.Now()
		result := Result{Mutant: m, Outcome: r.mutated(m)}
		result.Seconds = time.Since(began).Seconds()
		results = append(results, result)
		_, _ = fmt.Fprintf(out, "%-8s %5.1f s  %s\n%17s %s\n", result.Verdict, result.Seconds, m.Name, "",
			result.tests())
	}
	_, _ = fmt.Fprintln(out, Summary(results))

	return results, nil
}

// read returns the mutants of files whose name or file matches.
func read(files []string, match string) ([]Mutant, error) {
	wanted, err := regexp.Compile(match)
	if err != nil {
		return nil, err
	}
	var all []Mutant
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mutants, err := Parse(file, string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, mutants...)
	}
	all = slices.DeleteFunc(all, func(m Mutant) bool {
		return !wanted.MatchString(m.Name) && !wanted.MatchString(m.File)
	})
	if len(all) == 0 {
		return nil, errors.New("no mutant to run")
	}

	return all, nil
}

type runner struct {
	root, folder string
	flags        []string
}

func (r *runner) list(out io.Writer, mutants []Mutant) ([]Result, error) {
	var problems []error
	for _, m := range mutants {
		_, _ = fmt.Fprintf(out, "%s\n%17s %s, %s %s\n", m.Name, "", m.File, m.Package, m.Run)
		if _, err := r.overlay(m); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", m.Name, err))
		}
	}

	return nil, errors.Join(problems...)
}

// unmutated runs all tests without a fault: one that fails anyhow finds nothing.
func (r *runner) unmutated(out io.Writer, mutants []Mutant) error {
	type group struct{ pkg, env string }
	runs := map[group][]string{}
	for _, m := range mutants {
		g := group{m.Package, strings.Join(m.Env, "\n")}
		runs[g] = append(runs[g], m.Run)
	}
	byName := func(a, b group) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.env, b.env)) }
	for _, g := range slices.SortedFunc(maps.Keys(runs), byName) {
		names := runs[g]
		slices.Sort(names)
		m := Mutant{Package: g.pkg, Run: strings.Join(slices.Compact(names), "|"), Env: strings.Fields(g.env)}
		began := time.Now()
		outcome := Judge(r.test(m, ""))
		verdict := "failed"
		if outcome.Verdict == Survived {
			verdict = "passed"
		}
		_, _ = fmt.Fprintf(out, "%-8s %5.1f s  without a mutant: %s %s\n", verdict, time.Since(began).Seconds(), g.pkg,
			strings.Join(m.Env, " "))
		if outcome.Verdict != Survived {
			return fmt.Errorf("the tests of %s do not pass without a mutant: %s", g.pkg,
				cmp.Or(outcome.tests(), string(outcome.Verdict)))
		}
	}

	return nil
}

func (r *runner) mutated(m Mutant) Outcome {
	overlay, err := r.overlay(m)
	if err != nil {
		return Outcome{Verdict: Broken, Note: err.Error()}
	}

	return Judge(r.test(m, overlay))
}

// overlay writes the file with the fault, and the file that tells go test of it.
func (r *runner) overlay(m Mutant) (string, error) {
	path := filepath.Join(r.root, m.File)
	source, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	mutated, err := m.Apply(string(source))
	if err != nil {
		return "", err
	}
	file, overlay := filepath.Join(r.folder, "mutant.go"), filepath.Join(r.folder, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {path: file}})
	if err != nil {
		return "", err
	}

	return overlay, errors.Join(os.WriteFile(file, []byte(mutated), 0o644), os.WriteFile(overlay, replace, 0o644))
}

// test returns the output of go test -json, without an overlay if that is empty.
func (r *runner) test(m Mutant, overlay string) string {
	args := []string{"test", "-json", "-vet=off", "-count=1", "-timeout=3m"}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	args = append(append(args, r.flags...), "-run", m.Run, m.Package)
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = r.root, append(os.Environ(), m.Env...)
	output, err := cmd.CombinedOutput()
	if err != nil && len(output) == 0 {
		return err.Error() + "\n"
	}

	return string(output)
}
