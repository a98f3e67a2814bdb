package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// Severity says how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	// Problem: a promise does not hold, messages can be lost or do not move.
	Problem Severity = "problem"
	// Warning: somebody should look, or it is one step from a problem.
	Warning Severity = "warning"
	// Unseen: it could not be looked at.
	Unseen Severity = "unseen"
	// Note: good to know.
	Note Severity = "note"
	// OK: it was looked at, and nothing was found.
	OK Severity = "ok"
)

var severities = []Severity{Problem, Warning, Unseen, Note, OK}

// Finding is what a check has found.
type Finding struct {
	// Check that has found it, such as policies.
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Object that it is about, such as queue "orders"; broker, or user "x".
	Object string `json:"object"`
	// Found is what is there, Means what comes of it.
	Found string `json:"found"`
	Means string `json:"means,omitempty"`
	// Fix are lines for a POSIX shell that fix it, or that let a person see what to fix. Lines that
	// begin with # are to be read.
	Fix string `json:"fix,omitempty"`

	// of and part make one finding of many that are alike: of is the object of it, and part what
	// this one is about.
	of, part string
	// meansOfAll takes the place of Means if it is about several parts, whose own Means differ;
	// empty if they do not.
	meansOfAll string
}

// mostParts is how many parts of a merged finding are named.
const mostParts = 3

// merged makes one finding of those about parts of one object that have found the same, with the
// same meaning: a ladder has more than fifty queues.
func merged(findings []Finding) []Finding {
	var all []Finding
	parts := map[[4]string][]string{}
	same := func(f Finding) [4]string {
		return [4]string{f.of, string(f.Severity), f.Found, cmp.Or(f.meansOfAll, f.Means)}
	}
	for _, f := range findings {
		key := same(f)
		if f.of == "" || len(parts[key]) == 0 {
			all = append(all, f)
		}
		parts[key] = append(parts[key], f.part)
	}
	for i, f := range all {
		if f.of == "" {
			continue
		}
		names := parts[same(f)]
		if len(names) > 1 {
			all[i].Means = cmp.Or(f.meansOfAll, f.Means)
		}
		shown := strings.Join(names[:min(len(names), mostParts)], ", ")
		if n := len(names); n > mostParts {
			shown = fmt.Sprintf("%d objects (%s, …)", n, shown)
		}
		all[i].Object, all[i].Found = f.of, shown+": "+f.Found
	}
	return all
}

// tidy drops a command that would carry what does something to a terminal, as names of others can
// have it. It could not be pasted either, once that is spelled in another way.
func (f Finding) tidy() Finding {
	for line := range strings.Lines(f.Fix) {
		line = strings.ReplaceAll(strings.TrimSuffix(line, "\n"), "\t", "")
		if cli.Safe(line) != line {
			f.Fix = "# a name here has characters that no terminal takes as they are: there is no command to be pasted"
		}
	}
	return f
}

// sorted puts findings in the order of people: by object, the object with the worst finding first,
// and the broker before queues that are as bad.
func sorted(findings []Finding) []Finding {
	worst, first := map[string]int{}, map[string]int{}
	for i, f := range findings {
		rank := slices.Index(severities, f.Severity)
		if w, known := worst[f.Object]; !known || rank < w {
			worst[f.Object] = rank
		}
		if _, known := first[f.Object]; !known {
			first[f.Object] = i
		}
	}
	all := slices.Clone(findings)
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(worst[a.Object], worst[b.Object]),
			cmp.Compare(first[a.Object], first[b.Object]),
			cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity)),
		)
	})
	return all
}

// count tells how many findings have each severity.
func count(findings []Finding) map[Severity]int {
	n := map[Severity]int{}
	for _, severity := range severities {
		n[severity] = 0
	}
	for _, f := range findings {
		n[f.Severity]++
	}
	return n
}
