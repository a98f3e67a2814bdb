package simulate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/middleware/retrytest"
	"github.com/amqpretry/watermill-retry/retry"
)

func run(s *cli.Session, o options) error {
	policies, err := s.Policies()
	if err != nil {
		return err
	}
	policy := policies.For(o.topic)
	o, start, err := o.check(policy, s.Now())
	if err != nil {
		return err
	}
	plan, err := topology.New(o.queue, policy, topology.Names{Shared: o.shared})
	if err != nil { // the policy is valid, so it is about the names
		return cli.Usage("%w", err)
	}

	if policy.Mode == config.ModeOff {
		return printOff(s, o)
	}
	long, err := play(o, policy, start, 0)
	if err != nil {
		return err
	}
	short, err := play(o, policy, start, almostOne)
	if err != nil {
		return err
	}
	t := timelineOf(o, plan, policy, long, short)
	if s.JSON {
		return s.PrintJSON(t)
	}

	return t.print(s, o, policy)
}

// printOff says what a life without end would not show.
func printOff(s *cli.Session, o options) error {
	if s.JSON {
		return s.PrintJSON(timeline{Topic: o.topic, Queue: o.queue, Mode: config.ModeOff,
			Strategy: config.StrategyQueues, Steps: []step{}, End: endless})
	}
	_, err := fmt.Fprintf(s.Out, "The policy of topic %s is off: the broker returns a failed message to queue %s at "+
		"once, again and again.\n",
		cli.Safe(o.topic), cli.Safe(o.queue))

	return err
}

func (t timeline) print(s *cli.Session, o options, policy config.Policy) error {
	p := s.Printer()
	heading := fmt.Sprintf("topic %s, queue %s, mode %s", cli.Safe(t.Topic), cli.Safe(t.Queue), t.Mode)
	columns := []string{"after", "attempt", "outcome", "then", "queue", "for"}
	if policy.Strategy.ByBroker() {
		heading += fmt.Sprintf(", strategy %s", t.Strategy)
		columns = append(columns, "by")
	}
	p.Line("%s", heading)

	rows := make([][]string, len(t.Steps))
	for i, step := range t.Steps {
		row := []string{
			between(step.ShortestAfter, step.After), step.number(), step.Outcome, step.Verdict, step.Queue, step.wait(),
			step.By,
		}
		rows[i] = row[:len(columns)]
	}
	p.Table(columns, rows)
	for _, text := range t.notes(o, policy) {
		p.Line("%s", cli.Safe(text))
	}
	for i, step := range t.Steps {
		if step.Headers == nil || !o.headers {
			continue
		}
		p.Line("\nheaders in %s, step %d", cli.Safe(step.Queue), i+1)
		var rows [][]string
		for _, key := range slices.Sorted(maps.Keys(step.Headers)) {
			rows = append(rows, []string{key, step.Headers[key]})
		}
		p.Table([]string{"header", "value"}, rows)
	}

	return p.Err()
}

// notes are the end, and what to know of it.
func (t timeline) notes(o options, policy config.Policy) []string {
	end := t.End
	if t.Reason != "" {
		end += " (" + t.Reason + ")"
	}
	notes := []string{fmt.Sprintf("%s after %s and %s of the handler", end, between(t.ShortestTotal, t.Total),
		cli.Times(t.Calls, "call"))}
	if t.End == string(retrytest.DeadLettered) {
		notes[0] += fmt.Sprintf("; it is in %s", t.Steps[len(t.Steps)-1].Queue)
	}
	if t.differs {
		notes = append(notes, "Jitter: with the shortest waits, the number of steps before it expires differs. These "+
			"are the longest waits.")
	}
	if policy.Strategy.ByBroker() {
		notes = append(notes, copies(policy))
	}
	if len(policy.RetryOnly)+len(policy.NeverRetry) > 0 && o.errorType == "" {
		notes = append(notes, "The policy has lists of errors (retry_only, never_retry). Use --error-type NAME to "+
			"apply them.")
	}

	return notes
}

// copies says what goes by a copy under a strategy by which the broker brings messages back.
func copies(policy config.Policy) string {
	reasons := []string{"waits that an error asks for", "messages with an expiration or an x-death from elsewhere"}
	if policy.MaxAge > 0 {
		reasons = append(reasons, "messages without a timestamp, as here, under max_age")
	}
	switch {
	case policy.Strategy == config.StrategyCycle:
		reasons = append(reasons, "crashed messages", "what a copy has brought back before")
	case policy.Strategy == config.StrategyNative && len(policy.DistinctDelays()) > 1:
		reasons = append(reasons, "what a copy has brought back before")
	}
	if policy.Strategy.CountsReturns() {
		reasons = append(reasons, "messages that were returned 18 times")
	}

	return "By a copy, with the delays of the policy: " + strings.Join(reasons, ", ") + ". Dead letters are copies."
}

func (s step) number() string {
	text := fmt.Sprintf("%d of %d", s.Attempt, s.Attempts)
	if s.Try > 1 {
		text += fmt.Sprintf(", try %d", s.Try)
	}

	return text
}

func (s step) wait() string {
	switch s.verdict.Action {
	case retry.ActionRetry, retry.ActionPostpone:
		if s.Wait == 0 {
			return "at once"
		}

		return between(s.ShortestWait, s.Wait)
	case retry.ActionDeadLetter:
		return "until replay or purge"
	default:
		return ""
	}
}

func between(shortest, longest millis) string {
	if shortest == longest {
		return duration(longest)
	}

	return duration(shortest) + " to " + duration(longest)
}

func duration(m millis) string { return cli.ShortDuration(time.Duration(m)) }
