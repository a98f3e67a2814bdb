package main

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// event is a line of go test -json: see go doc test2json and go help buildjson.
type event struct {
	Time                          time.Time
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

// Timing is how long a test ran, or a package if Test is empty.
type Timing struct {
	Package string // relative to the module
	Test    string
	Seconds float64
}

// Stream is what the lines of go test -json have told so far.
type Stream struct {
	Module                  string   // what packages are relative to
	Tests, Packages         []Timing // those that passed or failed; Tests has no subtests
	Passed, Failed, Skipped int      // tests, with their subtests

	running   map[string]*running
	ended, ok int  // packages
	broken    bool // a build failed, or a line was cut off
}

// running is a package until it ends. Its output is printed then, because several packages run at
// the same time.
type running struct {
	own   strings.Builder // output outside of tests
	tests []*test         // in the order of their start
}

type test struct {
	name, action string // the action is pass, fail, skip, or empty while it runs
	start        time.Time
	output       strings.Builder
}

// Bad reports that a test, a package or a build failed, that a package did not end, or that there
// was no package.
func (s *Stream) Bad() bool { return s.broken || s.ended == 0 || s.ok < s.ended }

// Line takes one line and returns what to print for it. A line that is no event is printed as it
// is.
func (s *Stream) Line(line string) string {
	var e event
	switch failed := json.Unmarshal([]byte(line), &e); {
	case failed != nil, e.Action == "":
		return line
	case strings.HasPrefix(e.Action, "build-"):
		s.broken = s.broken || e.Action == "build-fail"

		return e.Output
	}
	pkg, found := s.running[e.Package]
	if !found {
		pkg = &running{}
		if s.running == nil {
			s.running = map[string]*running{}
		}
		s.running[e.Package] = pkg
	}
	done := e.Action == "pass" || e.Action == "fail" || e.Action == "skip"
	switch {
	case e.Test == "" && done:
		return s.end(e, pkg)
	case e.Test == "":
		pkg.own.WriteString(e.Output)
	case done:
		s.conclude(e, pkg.find(e))
	default:
		pkg.find(e).output.WriteString(e.Output)
	}

	return ""
}

// End returns what to print of packages that did not end.
func (s *Stream) End() string {
	var all string
	for _, name := range slices.Sorted(maps.Keys(s.running)) {
		all += s.end(event{Action: "fail", Package: name}, s.running[name])
		all += "FAIL\t" + name + " [output ended early]\n"
	}

	return all
}

func (s *Stream) end(e event, pkg *running) string {
	delete(s.running, e.Package)
	s.ended++
	if e.Action != "skip" {
		s.Packages = append(s.Packages, Timing{Package: relative(s.Module, e.Package), Seconds: e.Elapsed})
	}
	if e.Action != "fail" { // only the line of the package: go test prints logs of packages that failed
		s.ok++
		own := strings.TrimSuffix(pkg.own.String(), "\n")

		return own[strings.LastIndex(own, "\n")+1:] + "\n"
	}
	var all string
	for _, t := range pkg.tests {
		if t.action == "" { // a panic or the timeout ended the process
			e.Test, e.Elapsed = t.name, max(0, e.Time.Sub(t.start).Seconds())
			s.conclude(e, t)
		}
		if t.action == "fail" {
			all += t.plain()
		}
	}

	return all + pkg.own.String()
}

func (s *Stream) conclude(e event, t *test) {
	t.action = e.Action
	count := map[string]*int{"pass": &s.Passed, "fail": &s.Failed, "skip": &s.Skipped}[e.Action]
	*count++
	if e.Action != "fail" {
		t.output.Reset()
	}
	if e.Action != "skip" && !strings.Contains(e.Test, "/") {
		s.Tests = append(s.Tests, Timing{Package: relative(s.Module, e.Package), Test: e.Test, Seconds: e.Elapsed})
	}
}

// find returns the test that e is about. With -count=2 a test of the same name starts again.
func (p *running) find(e event) *test {
	for _, t := range slices.Backward(p.tests) {
		if t.name == e.Test && e.Action != "run" {
			return t
		}
	}
	p.tests = append(p.tests, &test{name: e.Test, start: e.Time})

	return p.tests[len(p.tests)-1]
}

var (
	progress = regexp.MustCompile(`(?m)^=== (RUN|PAUSE|CONT|NAME) .*\n`)
	result   = regexp.MustCompile(`(?m)^--- (FAIL|PASS|SKIP): .*\n`)
	indented = regexp.MustCompile(`(?m)^(--- |    )`)
)

// plain is the output of t as go test prints it: the result first, then what t logged, indented
// like its subtests.
func (t *test) plain() string {
	text := progress.ReplaceAllString(t.output.String(), "")
	if at := result.FindStringIndex(text); at != nil {
		text = text[at[0]:at[1]] + text[:at[0]] + text[at[1]:]
	}

	return indented.ReplaceAllString(text, strings.Repeat("    ", strings.Count(t.name, "/"))+"$1")
}

func relative(module, pkg string) string {
	if pkg == module {
		return "."
	}

	return strings.TrimPrefix(pkg, module+"/")
}
