package topology

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/wire"
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
	line("main queue", p.Queue, "as its own config says")
	for _, x := range p.Exchanges {
		line("exchange", x.Name, x.Type)
	}
	for _, q := range p.Queues {
		line("queue", q.Name, arguments(q.Arguments))
	}
	for _, x := range p.Bindings {
		matches := arguments(x.Arguments)
		if x.Key != "" {
			matches = "key " + x.Key
		}
		line("binding", x.Exchange+" -> "+x.Queue, matches)
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
	queues, exchanges := map[string]string{p.Queue: "main"}, map[string]string{}
	for i, x := range p.Exchanges {
		exchanges[x.Name] = fmt.Sprintf("exchange%d", i+1)
		line(`    exchange%d{{"%s"}}`, i+1, label(x.Name))
		if x.Name == p.RetryExchange {
			line(`    consumer -- "failed" --> exchange%d`, i+1)
		}
	}
	for i, q := range p.Queues {
		id := fmt.Sprintf("queue%d", i+1)
		queues[q.Name] = id
		switch {
		case q.Delay > 0:
			back, _ := q.Arguments["x-dead-letter-exchange"].(string)
			line(`    %s["%s"]`, id, label(q.Name))
			line(`    %s -- "after %s" --> %s`, id, config.FormatDelay(q.Delay), cmp.Or(exchanges[back], "main"))
		case p.endsByDefaultExchange():
			line(`    %s[("%s")]`, id, label(q.Name))
			line(`    consumer -- "the end" --> %s`, id)
		default:
			line(`    %s[("%s")]`, id, label(q.Name))
		}
	}
	for _, x := range p.Bindings {
		matches := headers(x.Arguments)
		if x.Key != "" {
			matches = "key " + x.Key
		}
		line(`    %s -- "%s" --> %s`, exchanges[x.Exchange], label(matches), queues[x.Queue])
	}
	return b.String()
}

// headers are the arguments of a binding that match headers: "amqpretry-delay: 30s".
func headers(table amqp.Table) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if wire.IsOwn(key) {
			pairs = append(pairs, fmt.Sprintf("%s: %v", key, table[key]))
		}
	}
	return strings.Join(pairs, ", ")
}

// label writes everything that could mean something to Mermaid, Markdown or HTML as a numbered entity.
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
