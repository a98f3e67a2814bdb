package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

const (
	slowest    = 40  // how many tests a table lists
	unbudgeted = 1.0 // how many seconds a package may take without a budget
)

// Slowest returns the n slowest tests and the totals. links are processor seconds of linking.
func Slowest(s Stream, links map[string]float64, n int) string {
	var sum float64
	for _, p := range s.Packages {
		sum += links[p.Package]
	}

	return tests(s.Tests, n) + fmt.Sprintf("tests of %d packages: %.1f s; processor time to link them: %.1f s\n",
		len(s.Packages), seconds(s.Packages), sum)
}

// Table returns the slowest tests and all packages, the slowest first.
func Table(s Stream, links map[string]float64) string {
	rows := [][]any{{"tests, s", "linking, processor s", "sum, s", "package"}}
	var sum float64
	for _, p := range order(s.Packages) {
		link := links[p.Package]
		sum += link
		rows = append(rows, []any{p.Seconds, link, p.Seconds + link, p.Package})
	}
	all := seconds(s.Packages)

	return tests(s.Tests, slowest) + "\n" +
		aligned(append(rows, []any{all, sum, all + sum, fmt.Sprintf("all %d", len(s.Packages))}))
}

func tests(all []Timing, n int) string {
	rows := [][]any{{"seconds", "test"}}
	for _, t := range order(all)[:min(n, len(all))] {
		rows = append(rows, []any{t.Seconds, t.Test + " (" + t.Package + ")"})
	}

	return aligned(append(rows, []any{seconds(all), fmt.Sprintf("all %d", len(all))}))
}

// Links reads the processor seconds of linking each test binary from the JSON of go test
// -debug-actiongraph.
func Links(module string, graph []byte) (map[string]float64, error) {
	var actions []struct {
		Mode, Package   string
		CmdUser, CmdSys time.Duration
	}
	if err := json.Unmarshal(graph, &actions); err != nil {
		return nil, fmt.Errorf("cannot read the action graph: %w", err)
	}
	links := map[string]float64{}
	for _, a := range actions {
		if name, isTest := strings.CutSuffix(a.Package, ".test"); a.Mode == "link" && isTest {
			links[relative(module, name)] += (a.CmdUser + a.CmdSys).Seconds()
		}
	}

	return links, nil
}

// Warnings returns a line for each package that is over its budget, or takes more than a second and
// has none. The text of file has a line "path seconds" for each package.
func Warnings(packages []Timing, file, text string) (string, error) {
	budgets := map[string]float64{}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		budget, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil || len(fields) != 2 {
			return "", fmt.Errorf("cannot read %q: line %d is not \"path seconds\": %q", file, i+1, line)
		}
		budgets[path.Clean(fields[0])] = budget
	}
	var warnings string
	for _, p := range order(packages) {
		took := fmt.Sprintf("warning: ./%s took %.1f s", strings.TrimPrefix(p.Package, "."), p.Seconds)
		if budget, found := budgets[p.Package]; found && p.Seconds > budget {
			warnings += fmt.Sprintf("%s, its budget is %g s: %s\n", took, budget, file)
		} else if !found && p.Seconds > unbudgeted {
			warnings += fmt.Sprintf("%s and has no budget: %s\n", took, file)
		}
	}

	return warnings, nil
}

func order(all []Timing) []Timing {
	slower := func(a, b Timing) int { return cmp.Compare(b.Seconds, a.Seconds) }

	return slices.SortedStableFunc(slices.Values(all), slower)
}

func seconds(all []Timing) float64 {
	var total float64
	for _, t := range all {
		total += t.Seconds
	}

	return total
}

// aligned returns rows of numbers with a name at their end.
func aligned(rows [][]any) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		for i, cell := range row {
			format := "%v\t"
			if _, isNumber := cell.(float64); isNumber {
				format = "%.1f\t"
			} else if i == len(row)-1 {
				format = "  %v"
			}
			_, _ = fmt.Fprintf(w, format, cell)
		}
		_, _ = fmt.Fprintln(w)
	}
	_ = w.Flush()

	return text.String()
}
