package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
)

// report prints the findings.
func report(s *cli.Session, f Facts, findings []Finding) error {
	if s.JSON {
		return s.PrintJSON(struct {
			Version     string           `json:"version"`
			VirtualHost string           `json:"virtual_host"`
			User        string           `json:"user"`
			Incomplete  string           `json:"incomplete,omitempty"`
			Age         float64          `json:"statistics_age_seconds,omitempty"`
			Counts      map[Severity]int `json:"counts"`
			Findings    []Finding        `json:"findings"`
		}{f.Version, f.VHost, f.User, f.incomplete(), f.age().Seconds(), count(findings), findings})
	}
	_, err := fmt.Fprint(s.Out, text(f, findings, s.Paint))
	return err
}

// styles are those of the severities that are printed.
var styles = map[Severity]cli.Style{Problem: cli.Bad, Warning: cli.Warn, Note: cli.Minor}

// text is for people: by object, the worst first.
func text(f Facts, findings []Finding, paint func(cli.Style, string) string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("RabbitMQ %s, virtual host %s, user %s", cli.Safe(f.Version), cli.Safe(f.VHost), cli.Safe(f.User))

	object, told := "", map[string]string{} // a text, and the object with which it is told
	again := func(text string) string {
		switch first, known := told[text]; {
		case !known:
			told[text] = object
			return ""
		case first == object:
			return "as above"
		default:
			return "as for " + cli.Safe(first)
		}
	}
	for _, finding := range findings {
		if finding.Severity == OK || finding.Severity == Unseen {
			continue
		}
		if finding.Object != object {
			object = finding.Object
			line("\n%s", paint(cli.Heading, cli.Safe(object)))
		}
		severity := paint(styles[finding.Severity], string(finding.Severity))
		line("  %s, %s: %s", severity, finding.Check, cli.Safe(finding.Found))
		if finding.Means != "" {
			line("    means: %s", cmp.Or(again(finding.Means), cli.Safe(finding.Means)))
		}
		if finding.Fix == "" {
			continue
		}
		if as := again(finding.Fix); as != "" {
			line("    fix: %s", as)
		} else {
			line("    fix:")
			for fix := range strings.Lines(finding.Fix) {
				line("      %s", strings.TrimRight(fix, "\n")) // tidy has made it safe
			}
		}
	}

	n := count(findings)
	whys, hidden := unseenByReason(findings)
	for _, why := range whys {
		line("\nnot checked: %s\n  because: %s", cli.Safe(strings.Join(hidden[why], "; ")), cli.Safe(why))
	}
	if len(f.Topics) == 0 {
		checked := "the broker was"
		switch {
		case f.Named != nil && !f.Absent:
			checked = "the broker and the " + ladderLabel(f.Named.Name()) + " were"
		case len(f.Others) > 0:
			checked = "the broker and the default ladders were"
		}
		line("\nNo queue was named, so only %s checked.", cli.Safe(checked))
	}
	if why := f.incomplete(); why != "" {
		line("\nIncomplete: %s. These are the findings until then; run doctor again for the others.", cli.Safe(why))
	}
	line("\n%s, %s, %s; %s; %s", cli.Times(n[Problem], "problem"), cli.Times(n[Warning], "warning"),
		cli.Times(n[Note], "note"),
		cli.Times(n[OK], "check")+" without findings", f.unseenChecks(findings))
	return b.String()
}

// incomplete is why the checks have ended early; "" if they have not.
func (f Facts) incomplete() string {
	if f.Ended == nil {
		return ""
	}
	return f.Ended.Error()
}

// unseenByReason gives the reasons why something was not seen, in order, and what that was.
func unseenByReason(findings []Finding) (whys []string, hidden map[string][]string) {
	hidden = map[string][]string{}
	for _, f := range findings {
		if f.Severity != Unseen {
			continue
		}
		if _, told := hidden[f.Means]; !told {
			whys = append(whys, f.Means)
		}
		what := strings.TrimPrefix(f.Found, "not seen: ")
		if !slices.Contains(hidden[f.Means], what) {
			hidden[f.Means] = append(hidden[f.Means], what)
		}
	}
	return whys, hidden
}

// age is how old the statistics are of which nothing tells whether they are fresh: messages on
// their way out of a queue, which the checks stuck and landing count. 0 if there are none.
func (f Facts) age() time.Duration {
	for _, q := range f.Queues {
		if q.Details.Known && q.Details.Value.Effective != nil {
			return inspect.StatisticsAge
		}
	}
	return 0
}

// unseenChecks names those that could not look, or not at everything.
func (f Facts) unseenChecks(findings []Finding) string {
	var names []string
	told := map[string]bool{}
	for _, f := range findings {
		if f.Severity == Unseen && !told[f.Check] {
			told[f.Check] = true
			names = append(names, f.Check)
		}
	}
	text := "all checks are complete"
	switch {
	case len(names) == 0 && f.Ended != nil: // the others have what they need from other answers
		text = "the checks are incomplete"
	case len(names) > 0:
		text = "incomplete checks: " + strings.Join(names, ", ")
	}
	if age := f.age(); age > 0 {
		text += fmt.Sprintf(" (stuck, landing: up to %s old)", age)
	}
	return text
}
