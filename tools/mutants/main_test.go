package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const list = `A comment.

=== P1: it is not said
file: a/a.go
# why
test: ./a
run: ^TestA$
env: X=1
env: Y=two words
--- old
	one

	two
--- new

=== second
file: b.go
test: .
run: .
--- old
three
--- new
four

`

func TestParse(t *testing.T) {
	got, err := Parse("list.txt", list)
	want := []Mutant{
		{Name: "P1: it is not said", File: "a/a.go", Package: "./a", Run: "^TestA$",
			Env: []string{"X=1", "Y=two words"}, Old: "\tone\n\n\ttwo"},
		{Name: "second", File: "b.go", Package: ".", Run: ".", Old: "three", New: "four"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, error %v\nwant %+v", got, err, want)
	}
	for text, problem := range map[string]string{
		"=== a\nfiel: x\n":                                  "list.txt:2: \"fiel: x\" is none of file, test, run, env",
		"=== a\nfile: x\ntest: .\nrun: .\n":                 "mutant \"a\" needs",
		"=== a\nfile: x\ntest: .\n--- old\nx\n--- new\ny\n": "mutant \"a\" needs",
	} {
		if _, err := Parse("list.txt", text); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("error of %q: %v", text, err)
		}
	}
}

func TestApply(t *testing.T) {
	m := Mutant{File: "a.go", Old: "a\n\tb", New: "c"}
	if got, err := m.Apply("x a\n\tb y"); got != "x c y" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for _, source := range []string{"a", "a\n\tb a\n\tb"} {
		if _, err := m.Apply(source); err == nil {
			t.Errorf("applies to %q", source)
		}
	}
	m.New = m.Old
	if _, err := m.Apply(m.Old); err == nil {
		t.Error("a mutant without a change applies")
	}
}

func TestJudge(t *testing.T) {
	const (
		run    = `{"Action":"run","Package":"p","Test":"TestA"}` + "\n"
		sub    = `{"Action":"run","Package":"p","Test":"TestA/sub"}` + "\n"
		passed = `{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}` + "\n"
		failed = `{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0}` + "\n"
		ok     = `{"Action":"pass","Package":"p","Elapsed":0}` + "\n"
		bad    = `{"Action":"fail","Package":"p","Elapsed":0}` + "\n"
	)
	for name, test := range map[string]struct {
		output string
		want   Outcome
	}{
		"passed": {run + passed + ok, Outcome{Verdict: Survived}},
		"failed": {run + failed + bad, Outcome{Verdict: Killed, Failed: []string{"TestA"}}},
		"subtest": {run + sub + `{"Action":"fail","Package":"p","Test":"TestA/sub"}` + "\n" + failed + bad,
			Outcome{Verdict: Killed, Failed: []string{"TestA/sub"}}},
		"timeout": {run + `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out\n"}` +
			"\n" + bad, Outcome{Verdict: Killed, Failed: []string{"TestA"}, Note: "by the timeout"}},
		"panic in another goroutine": {run + bad,
			Outcome{Verdict: Killed, Failed: []string{"TestA"}, Note: "by a panic"}},
		"skipped": {run + `{"Action":"skip","Package":"p","Test":"TestA"}` + "\n" + ok,
			Outcome{Verdict: Broken, Note: "no test ran"}},
		"no test":   {ok, Outcome{Verdict: Broken, Note: "no test ran"}},
		"no folder": {"stat /x\n", Outcome{Verdict: Broken, Note: "no test ran stat /x"}},
		"TestMain fails": {run + passed + bad,
			Outcome{Verdict: Broken, Note: "the package failed, and none of its tests"}},
		"build": {`{"ImportPath":"p","Action":"build-output","Output":"p/a.go:3:1: undefined: x\n"}` + "\n" +
			`{"ImportPath":"p","Action":"build-fail"}` + "\n" + bad,
			Outcome{Verdict: Broken, Note: "it does not compile: p/a.go:3:1: undefined: x"}},
	} {
		if got := Judge(test.output); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

func TestTable(t *testing.T) {
	got := Table([]Result{
		{Mutant{Name: "first", File: "a.go"}, Outcome{Killed, []string{"TestA", "TestB", "TestC", "TestD"}, ""}, 1.25},
		{Mutant{Name: "second", File: "b.go"}, Outcome{Verdict: Survived}, 0.5},
		{Mutant{Name: "third", File: "c.go"}, Outcome{Verdict: Broken, Note: "a|b"}, 2},
	})
	want := "| mutant | file | result | failing tests | seconds |\n|---|---|---|---|---:|\n" +
		"| second | b.go | survived |  | 0.5 |\n| third | c.go | broken | (a\\|b) | 2.0 |\n" +
		"| first | a.go | killed | TestA, TestB, TestC and 1 more | 1.2 |\n" +
		"\n3 mutants: 1 killed, 1 survived, 1 broken\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A small module is tested with one mutant of each kind.
func TestRun(t *testing.T) {
	root := t.TempDir()
	const source = "package a\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n\nfunc Unused() {}\n"
	for name, text := range map[string]string{
		"go.mod": "module example.com/a\n\ngo 1.26\n",
		"a.go":   source,
		"a_test.go": "package a\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nfunc TestSum(t *testing.T) {\n" +
			"\tif os.Getenv(\"BREAK\") != \"\" || Sum(1, 2) != 3 {\n\t\tt.Error(\"wrong\")\n\t}\n}\n",
		"list.txt": "=== sum\nfile: a.go\ntest: .\nrun: ^TestSum$\n--- old\na + b\n--- new\na - b\n" +
			"=== unused\nfile: a.go\ntest: .\nrun: ^TestSum$\n--- old\nfunc Unused() {}\n--- new\n" +
			"=== syntax\nfile: a.go\ntest: .\nrun: ^TestSum$\n--- old\nreturn\n--- new\nretrun\n" +
			"=== gone\nfile: a.go\ntest: .\nrun: ^TestSum$\n--- old\nnothing\n--- new\nx\n",
		"env.txt": "=== env\nfile: a.go\ntest: .\nrun: Sum\nenv: BREAK=yes\n--- old\na + b\n--- new\na - b\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("TESTFLAGS", "-short")

	var out strings.Builder
	results, err := run(&out, root, "", false, []string{filepath.Join(root, "list.txt")})
	var verdicts []Verdict
	for _, r := range results {
		verdicts = append(verdicts, r.Verdict)
	}
	if want := []Verdict{Killed, Survived, Broken, Broken}; err != nil || !slices.Equal(verdicts, want) {
		t.Fatalf("verdicts %v, error %v, want %v:\n%s", verdicts, err, want, &out)
	}
	if text, err := os.ReadFile(filepath.Join(root, "a.go")); err != nil || string(text) != source {
		t.Errorf("the source was changed: %v\n%s", err, text)
	}

	if _, err := run(&out, root, "", false, []string{filepath.Join(root, "env.txt")}); err == nil ||
		!strings.Contains(err.Error(), "do not pass without a mutant: TestSum") {
		t.Errorf("error of tests that fail anyhow: %v", err)
	}
	if _, err := run(&out, root, "nobody", false, []string{filepath.Join(root, "list.txt")}); err == nil {
		t.Error("no error without mutants")
	}
}

// The mutants of the repository fit its code. Where this fails, a change has moved the code of a
// mutant.
func TestMutantsApply(t *testing.T) {
	files, err := filepath.Glob("../../tests/mutants/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no mutants: %v", err)
	}
	var out strings.Builder
	if _, err := run(&out, "../..", "", true, files); err != nil {
		t.Error(err)
	}
}
