package main

import (
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
)

// testdata/NAME.json is what go test -json printed, with fewer stack frames. NAME.txt is what must
// be printed for it.
func TestStream(t *testing.T) {
	tests := map[string]struct {
		counts [3]int // passed, failed, skipped
		bad    bool
		tests  []Timing
	}{
		"pass": {[3]int{3, 0, 1}, false, []Timing{{"good", "TestFast", 0}, {"good", "TestGroup", 0.02}}},
		"fail": {[3]int{3, 2, 0}, true,
			[]Timing{{"bad", "TestFine", 0}, {"bad", "TestWrong", 0}, {"bad", "TestPartial", 0}}},
		"panic":   {[3]int{0, 1, 0}, true, []Timing{{"boom", "TestBoom", 0}}},
		"timeout": {[3]int{0, 1, 0}, true, []Timing{{"slow", "TestSlow", 1.02}}},
		"race":    {[3]int{0, 1, 0}, true, []Timing{{"race", "TestRace", 0.01}}},
		"build":   {[3]int{0, 0, 0}, true, nil},
		"cut":     {[3]int{1, 2, 0}, true, []Timing{{"good", "TestFast", 0}, {"good", "TestGroup", 0}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, got := play(t, read(t, name+".json"))
			if want := read(t, name+".txt"); got != want {
				t.Errorf("printed:\n%s\nwant:\n%s", got, want)
			}
			if counts := [3]int{s.Passed, s.Failed, s.Skipped}; counts != test.counts || s.Bad() != test.bad {
				t.Errorf("counts %v, bad %t; want %v, %t", counts, s.Bad(), test.counts, test.bad)
			}
			for i := range s.Tests {
				s.Tests[i].Seconds = math.Round(100*s.Tests[i].Seconds) / 100
			}
			if !reflect.DeepEqual(s.Tests, test.tests) {
				t.Errorf("tests %v, want %v", s.Tests, test.tests)
			}
		})
	}
}

func TestStream_OtherLines(t *testing.T) {
	for _, line := range []string{"go: downloading x\n", "{\"broken\n", "{}\n", "\n", "3\n"} {
		if _, got := play(t, line); got != line {
			t.Errorf("printed %q for %q", got, line)
		}
	}
	if s, _ := play(t, "go: nothing to test\n"); !s.Bad() {
		t.Error("a stream without a package is fine")
	}
	passed := read(t, "pass.json")
	if s, _ := play(t, passed+`{"Time":"2026`); !s.Bad() {
		t.Error("a stream that ends within a line is fine")
	}
	if s, _ := play(t, passed+read(t, "build.json")); !s.Bad() || s.Passed != 3 {
		t.Error("a build failed, and the stream is fine")
	}
	again := strings.ReplaceAll(passed, `"TestFast"`, `"TestGroup"`)
	if s, _ := play(t, again); s.Passed != 3 || len(s.Tests) != 2 {
		t.Errorf("-count=2: %d passed, tests %v", s.Passed, s.Tests)
	}
}

func TestTables(t *testing.T) {
	s := Stream{
		Tests: []Timing{{"tests", "TestA", 2.04}, {"config", "TestB", 11}, {"config", "TestC", 0.001}},
		// A dot is the package in the root of the module.
		Packages: []Timing{{"tests", "", 130}, {"config", "", 11.5}, {".", "", 1.1}, {"retry", "", 0.9}},
	}
	links, err := Links("example.com", []byte(read(t, "graph.json")))
	if want := map[string]float64{"slow": 0.328871, "good": 0.320573, "bad": 0.31162}; err != nil ||
		!reflect.DeepEqual(links, want) {
		t.Errorf("links %v, error %v, want %v", links, err, want)
	}
	links = map[string]float64{"tests": 4, "config": 1.25}
	slow := "  seconds  test\n     11.0  TestB (config)\n      2.0  TestA (tests)\n"
	total := "     13.0  all 3\n"
	want := slow + "      0.0  TestC (config)\n" + total + `
  tests, s  linking, processor s  sum, s  package
     130.0                   4.0   134.0  tests
      11.5                   1.2    12.8  config
       1.1                   0.0     1.1  .
       0.9                   0.0     0.9  retry
     143.5                   5.2   148.8  all 4
`
	if got := Table(s, links); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	want = slow + total + "tests of 4 packages: 143.5 s; processor time to link them: 5.2 s\n"
	if got := Slowest(s, links, 2); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestWarnings(t *testing.T) {
	packages := []Timing{{"config", "", 11}, {"tests", "", 130.25}, {"retry", "", 0.9}, {".", "", 1.5}}
	got, err := Warnings(packages, "budgets", "# path seconds\n./tests 100\n\nconfig 11 # enough\nnone 3\n")
	want := "warning: ./tests took 130.2 s, its budget is 100 s: budgets\n" +
		"warning: ./ took 1.5 s and has no budget: budgets\n"
	if got != want || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	for _, text := range []string{"tests", "tests ten", "tests 10 20"} {
		if _, err := Warnings(packages, "budgets", "# first\n"+text); err == nil ||
			!strings.Contains(err.Error(), "line 2") {
			t.Errorf("error of %q: %v", text, err)
		}
	}
}

func play(t *testing.T, input string) (Stream, string) {
	t.Helper()
	s := Stream{Module: "example.com"}
	var out strings.Builder
	if err := s.copy(strings.NewReader(input), &out); err != nil {
		t.Fatal(err)
	}

	return s, out.String()
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}
