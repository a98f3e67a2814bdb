// Command timings reads what go test -json prints, and prints what go test prints without -json.
// After the last package come the slowest tests, warnings about packages over their budgets, and a
// line with the number of tests. The exit code is 1 if a test, a package or a build failed, if the
// input ended early, or if it had no package.
//
//	go test -json -debug-actiongraph=graph.json ./... | timings -actions graph.json -first 10 -budgets tests/budgets
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	module := flag.String("module", "github.com/amqpretry/watermill-retry", "module that the packages are relative to")
	first := flag.Int("first", 0, "how many of the slowest tests to print at the end")
	actions := flag.String("actions", "", "file that go test -debug-actiongraph writes, for the cost of linking")
	report := flag.String("report", "", "file to write the slowest tests and all packages to")
	budgets := flag.String("budgets", "", "file with a line \"path seconds\" for each package")
	flag.Parse()

	s := Stream{Module: *module}
	err := s.copy(os.Stdin, os.Stdout)
	var text string
	var links map[string]float64
	if err == nil && *actions != "" {
		graph, failed := os.ReadFile(*actions)
		if failed == nil {
			links, failed = Links(*module, graph)
		}
		if failed != nil { // go test writes none if it cannot build anything
			text = fmt.Sprintf("warning: no cost of linking: %v\n", failed)
		}
	}
	if err == nil && *report != "" {
		err = os.WriteFile(*report, []byte(Table(s, links)), 0o644)
	}
	if err == nil && *first > 0 {
		text += "\n" + Slowest(s, links, *first)
	}
	if err == nil && *budgets != "" {
		var warnings string
		warnings, err = readBudgets(s, *budgets)
		text += warnings
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "timings:", err)
	}
	if s.Bad() {
		text += "FAIL\n"
	}
	_, _ = fmt.Fprintf(os.Stdout, "%s%d passed, %d failed, %d skipped\n", text, s.Passed, s.Failed, s.Skipped)
	if err != nil || s.Bad() {
		os.Exit(1)
	}
}

func readBudgets(s Stream, file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}

	return Warnings(s.Packages, file, string(text))
}

// copy reads events until they end, and writes what to print for each.
func (s *Stream) copy(in io.Reader, out io.Writer) error {
	for reader := bufio.NewReader(in); ; {
		line, err := reader.ReadString('\n')
		if line != "" && err == io.EOF { // cut off
			line, s.broken = line+"\n", true
		}
		text := s.Line(line)
		if err == io.EOF {
			text += s.End()
		}
		if _, failed := io.WriteString(out, text); failed != nil || err == io.EOF {
			return failed
		}
		if err != nil {
			return fmt.Errorf("cannot read the output of go test: %w", err)
		}
	}
}
