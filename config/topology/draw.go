package topology

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// String is the plan as aligned text, one object per line.
func (p Plan) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	// The writer never fails: it writes to memory.
	line := func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }
	if p.IsEmpty() {
		return fmt.Sprintf("main queue %s: nothing is declared\n", p.Queue)
	}
	if p.Queue != "" { // else it is what a ladder shares
		own := "as its own config says"
		if p.MainArguments != nil {
			own += ", with " + arguments(p.MainArguments)
		}
		line("main queue", p.Queue, own)
	}
	if p.Ladder != nil {
		line("delays", p.Ladder.Name(), "shared by all queues with exact delays")
	}
	for _, x := range p.Exchanges {
		line("exchange", x.Name, strings.TrimSpace(x.Type+" "+arguments(x.Arguments)))
	}
	for _, q := range p.Queues {
		line("queue", q.Name, arguments(q.Arguments))
	}
	for _, x := range p.Bindings {
		matches := arguments(x.Arguments)
		if x.Key != "" {
			matches = "key " + x.Key
		}
		line("binding", x.Exchange+" -> "+x.Queue+x.ToExchange, matches)
	}
	_ = w.Flush()
	return b.String()
}

func arguments(table amqp.Table) string {
	pairs := make([]string, 0, len(table))
	for _, key := range slices.Sorted(maps.Keys(table)) {
		pairs = append(pairs, fmt.Sprintf("%s=%#v", key, table[key]))
	}
	return strings.Join(pairs, " ")
}

// Mermaid is the plan as a Mermaid flowchart: the way of a message, for docs and reviews.
func (p Plan) Mermaid() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("flowchart LR")
	line(`    publisher(["publisher"]) --> main["%s"]`, label(p.Queue))
	line(`    main --> consumer(["consumer"])`)
	shapes := map[shape]string{exchangeShape: `{{"%s"}}`, retryShape: `["%s"]`, endShape: `[("%s")]`}
	p.draw(
		func(id, name string, s shape) { line(`    %s`+shapes[s], id, label(name)) },
		func(from, text, to string) { line(`    %s -- "%s" --> %s`, from, label(text), to) },
	)
	return b.String()
}

// DOT is the same in the language of Graphviz.
func (p Plan) DOT() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("digraph {")
	line(`    rankdir=LR`)
	line(`    node [shape=box]`)
	line(`    publisher [shape=oval]`)
	line(`    consumer [shape=oval]`)
	line(`    main [label=%s]`, quoteDOT(p.Queue))
	line(`    publisher -> main`)
	line(`    main -> consumer`)
	shapes := map[shape]string{exchangeShape: "hexagon", retryShape: "box", endShape: "cylinder"}
	p.draw(
		func(id, name string, s shape) { line(`    %s [label=%s, shape=%s]`, id, quoteDOT(name), shapes[s]) },
		func(from, text, to string) { line(`    %s -> %s [label=%s]`, from, to, quoteDOT(text)) },
	)
	line("}")
	return b.String()
}

// shape is how an object is drawn.
type shape int

const (
	exchangeShape shape = iota
	retryShape
	endShape
)

// failed is the way of a copy. With a broker-driven strategy the broker brings back most of what
// has failed.
func (p Plan) failed() string {
	if p.Strategy != "" {
		return "failed: by a copy"
	}
	return "failed"
}

// drawStrategy draws the way of what the broker brings back. deadLetters is the id of the
// dead-letter queue.
func (p Plan) drawStrategy(exchanges map[string]string, deadLetters string, edge func(from, text, to string)) {
	switch p.Strategy {
	case config.StrategyCycle:
		rejected, _ := p.MainArguments["x-dead-letter-exchange"].(string)
		edge("consumer", "failed: rejected", "main")
		edge("main", "dead-lettered", exchanges[rejected])
	case config.StrategyRedelivery:
		edge("consumer", "failed: returned at once", "main")
		edge("main", "delivery limit", deadLetters)
	case config.StrategyNative:
		edge("consumer", "failed: returned after "+p.nativeDelays(), "main")
		edge("main", "delivery limit", deadLetters)
	}
}

// nativeDelays are the delays of the main queue: "10s", or "10s to 30s".
func (p Plan) nativeDelays() string {
	of := func(argument string) string {
		ms, _ := p.MainArguments[argument].(int64)
		return config.FormatDelay(time.Duration(ms) * time.Millisecond)
	}
	shortest, longest := of("x-delayed-retry-min"), of("x-delayed-retry-max")
	if shortest == longest {
		return shortest
	}
	return shortest + " to " + longest
}

// draw draws what the plan declares, behind the main queue "main" and its "consumer".
func (p Plan) draw(node func(id, name string, s shape), edge func(from, text, to string)) {
	queues, exchanges := map[string]string{p.Queue: "main"}, map[string]string{}
	if p.Ladder != nil {
		node("delays", p.Ladder.Name(), retryShape)
		edge("consumer", "failed", "delays")
	}
	for i, x := range p.Exchanges {
		id := fmt.Sprintf("exchange%d", i+1)
		exchanges[x.Name] = id
		node(id, x.Name, exchangeShape)
		switch {
		case x.Name != p.RetryExchange:
		case p.Ladder != nil:
			edge("consumer", "the end", id)
		default:
			edge("consumer", p.failed(), id)
		}
	}
	for i, q := range p.Queues {
		id := fmt.Sprintf("queue%d", i+1)
		queues[q.Name] = id
		switch {
		case q.Delay > 0:
			back, _ := q.Arguments["x-dead-letter-exchange"].(string)
			node(id, q.Name, retryShape)
			edge(id, "after "+config.FormatDelay(q.Delay), cmp.Or(exchanges[back], "main"))
		case q.Landing:
			node(id, q.Name, retryShape)
			edge("delays", "after any delay", id)
			edge(id, "at once", "main")
		case p.endsByDefaultExchange():
			node(id, q.Name, endShape)
			edge("consumer", "the end", id)
		default:
			node(id, q.Name, endShape)
		}
	}
	p.drawStrategy(exchanges, queues[p.DeadLetterQueue], edge)
	for _, x := range p.Bindings {
		if exchanges[x.Exchange] == "" {
			continue // it is the ladder's
		}
		matches := headers(x.Arguments)
		if x.Key != "" {
			matches = "key " + x.Key
		}
		edge(exchanges[x.Exchange], matches, queues[x.Queue])
	}
}

// headers are the arguments of a binding that match headers: "amqpretry-delay: 30s".
func headers(table amqp.Table) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if header.IsOwn(key) || key == firstReason {
			pairs = append(pairs, fmt.Sprintf("%s: %v", key, table[key]))
		}
	}
	return strings.Join(pairs, ", ")
}

// label writes everything that could mean something to Mermaid, Markdown or HTML as a numbered
// entity.
func label(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), strings.ContainsRune(" .:/_-", r):
			b.WriteRune(r)
		case unicode.IsControl(r):
			b.WriteRune(unicode.ReplacementChar)
		default:
			fmt.Fprintf(&b, "#%d;", r)
		}
	}
	return b.String()
}

// quoteDOT makes a text a string of DOT whose label is that text: there a backslash begins an
// escape, and an ampersand an entity of HTML.
func quoteDOT(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"', r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '&':
			b.WriteString("&amp;")
		case unicode.IsControl(r):
			b.WriteRune(unicode.ReplacementChar)
		case !unicode.IsGraphic(r): // such as those that turn the direction of writing
			fmt.Fprintf(&b, "&#%d;", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
