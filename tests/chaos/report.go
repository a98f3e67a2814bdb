package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is a run in Markdown.
func Report(title string, l Ledger, v Verdict) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n", title)
	b.WriteString("| topic | published | processed | dead-lettered | dropped | removed by an operator | lost by " +
		"classic retry queues | lost | retries | handled again | dead twice | late p50, s | p99 | max |\n")
	b.WriteString("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	all := Count{}
	row := func(name string, c Count, late []time.Duration) {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d |%s\n", name, c.Sent, c.Processed,
			c.DeadLettered, c.Dropped,
			c.Removed, c.Due, c.Lost, c.Retries, c.Again, c.TwiceDead, lateness(late))
	}
	var late []time.Duration
	for _, topic := range Topics() {
		if c := v.Counts[topic.Name]; c != nil {
			row(topic.Name, *c, v.Late[topic.Name])
			all, late = all.plus(*c), append(late, v.Late[topic.Name]...)
		}
	}
	row("**all**", all, late)

	faults, of := map[string]int{}, map[string]int{}
	for _, f := range l.Faults {
		faults[f.Name]++
		of[f.Of]++
	}
	fmt.Fprintf(&b, "\n%d faults of the broker, %d of connections, %d of processes:", of["broker"], of["connection"],
		of["process"])
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		fmt.Fprintf(&b, " %s %d,", name, faults[name])
	}

	return strings.TrimSuffix(b.String(), ",") + "\n"
}

// lateness are the cells of the middle, the 99th of a hundred and the largest, in seconds.
func lateness(late []time.Duration) string {
	if len(late) == 0 {
		return " | | |"
	}
	slices.Sort(late)
	n := len(late)

	return fmt.Sprintf(" %.2f | %.2f | %.2f |", late[n/2].Seconds(), late[n*99/100].Seconds(), late[n-1].Seconds())
}

func (c Count) plus(d Count) Count {
	return Count{
		c.Sent + d.Sent, c.Processed + d.Processed, c.DeadLettered + d.DeadLettered, c.Dropped + d.Dropped, c.Removed +
			d.Removed,
		c.Lost + d.Lost, c.Due + d.Due, c.Retries + d.Retries, c.Again + d.Again, c.TwiceDead + d.TwiceDead,
	}
}
