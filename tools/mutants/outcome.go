package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Verdict is what became of a mutant.
type Verdict string

// The verdicts on a mutant.
const (
	Killed   Verdict = "killed"   // tests failed
	Survived Verdict = "survived" // all tests passed
	Broken   Verdict = "broken"   // it does not apply, does not compile, or ran no test
)

// Outcome is what the tests told of a mutant.
type Outcome struct {
	Verdict Verdict
	Failed  []string // tests, without those whose subtests failed
	Note    string   // what else a reader has to know
}

// Judge reads the output of go test -json.
func Judge(output string) Outcome {
	state := map[string]string{} // of tests: run, pass, fail, skip
	var builds, other strings.Builder
	var unbuilt, failed, timeout bool
	for line := range strings.Lines(output) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal([]byte(line), &e) != nil {
			other.WriteString(line)

			continue
		}
		timeout = timeout || strings.HasPrefix(e.Output, "panic: test timed out")
		switch e.Action {
		case "build-output":
			builds.WriteString(e.Output)
		case "build-fail":
			unbuilt = true
		case "run", "pass", "fail", "skip":
			if e.Test != "" {
				state[e.Test] = e.Action
			} else if e.Action == "fail" {
				failed = true
			}
		}
	}
	named, cut, ran := byState(state)
	switch {
	case unbuilt:
		return Outcome{Verdict: Broken, Note: "it does not compile: " + strings.TrimSpace(builds.String())}
	case !ran:
		return Outcome{Verdict: Broken, Note: strings.TrimSpace("no test ran " + other.String())}
	case !failed:
		return Outcome{Verdict: Survived}
	case len(named) > 0:
		return Outcome{Verdict: Killed, Failed: named}
	case timeout:
		return Outcome{Verdict: Killed, Failed: cut, Note: "by the timeout"}
	case len(cut) > 0:
		return Outcome{Verdict: Killed, Failed: cut, Note: "by a panic"}
	}

	return Outcome{Verdict: Broken, Note: "the package failed, and none of its tests"}
}

// byState returns the tests that failed and those that did not end, and whether any had a result or
// at least began.
func byState(state map[string]string) (failed, cut []string, ran bool) {
	for name, action := range state {
		ran = ran || action != "skip"
		switch action {
		case "fail":
			failed = append(failed, name)
		case "run":
			cut = append(cut, name)
		}
	}

	return leaves(failed), leaves(cut), ran
}

// leaves are names without those that have subtests among them.
func leaves(names []string) []string {
	slices.Sort(names)

	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.ContainsFunc(names, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
}

// tests names what failed in one line, with no more than three tests.
func (o Outcome) tests() string {
	const most = 3
	names := strings.Join(o.Failed[:min(most, len(o.Failed))], ", ")
	if more := len(o.Failed) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	if o.Note != "" {
		names = strings.TrimSpace(names + " (" + o.Note + ")")
	}

	return names
}

// Result is a mutant with its outcome.
type Result struct {
	Mutant
	Outcome
	Seconds float64
}

// Table is a table in Markdown, with what is wrong first.
func Table(results []Result) string {
	rank := []Verdict{Survived, Broken, Killed}
	sorted := slices.SortedStableFunc(slices.Values(results), func(a, b Result) int {
		return cmp.Compare(slices.Index(rank, a.Verdict), slices.Index(rank, b.Verdict))
	})
	text := "| mutant | file | result | failing tests | seconds |\n|---|---|---|---|---:|\n"
	for _, r := range sorted {
		failing := strings.NewReplacer("|", `\|`, "\n", " ").Replace(r.tests())
		text += fmt.Sprintf("| %s | %s | %s | %s | %.1f |\n", r.Name, r.File, r.Verdict, failing, r.Seconds)
	}

	return text + "\n" + Summary(results) + "\n"
}

// Summary counts the verdicts.
func Summary(results []Result) string {
	n := map[Verdict]int{}
	for _, r := range results {
		n[r.Verdict]++
	}

	return fmt.Sprintf("%d mutants: %d killed, %d survived, %d broken", len(results), n[Killed], n[Survived], n[Broken])
}
