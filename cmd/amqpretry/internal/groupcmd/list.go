package groupcmd

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/retire"
)

func (g *groups) listCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [GROUP...]",
		Short: "List the queues of consumer groups, with their messages and consumers",
		Long: `List the queues of consumer groups, with their messages and consumers. Without GROUP, list those of all
groups.

A queue belongs to a group if its name is the name of an exchange and of a group, by --group-queue. If
several exchanges fit, the one to which the queue is bound counts, else the one with the longest name.
WAITING counts the messages in the retry queues and in the landing queue. BOUND TO are the exchanges
from which the queue gets messages. The numbers are those of the management API, some seconds old.

With --json: {"queues": [{"group", "topic", "queue", "type", "messages", "consumers", "bindings":
[{"exchange", "key"}], "waiting": [{"queue", "messages"}], "dead_letter_queue", "dead_letters"}]}. A
number that the API does not tell is null.

Exit codes: 0 listed, also when there is none; 1 the management API could not be reached; 2 wrong
usage.`,
		Example: `  amqpretry group list
  amqpretry group list billing
  amqpretry group list --json | jq '.queues[] | select(.consumers == 0)'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return g.list(cmd.Context(), args) },
	}
}

// listed is a queue of a group.
type listed struct {
	Group     string    `json:"group"`
	Topic     string    `json:"topic"`
	Queue     string    `json:"queue"`
	Type      string    `json:"type"`
	Messages  *int64    `json:"messages"`
	Consumers *int64    `json:"consumers"`
	Bindings  []binding `json:"bindings"`
	Waiting   []counted `json:"waiting"`

	DeadLetterQueue string `json:"dead_letter_queue"`
	DeadLetters     *int64 `json:"dead_letters"`
}

type binding struct {
	Exchange string `json:"exchange"`
	Key      string `json:"key"`
}

type counted struct {
	Queue    string `json:"queue"`
	Messages *int64 `json:"messages"`
}

func (g *groups) list(ctx context.Context, args []string) error {
	if err := g.check(); err != nil {
		return err
	}
	client, err := g.session.ManagementClient("group")
	if err != nil {
		return err
	}
	all, err := g.find(ctx, client, args)
	if err != nil {
		return err
	}
	if g.session.JSON {
		return g.session.PrintJSON(map[string]any{"queues": all})
	}
	if len(all) == 0 {
		p := g.session.Printer()
		p.Line("No queues of consumer groups.")
		return p.Err()
	}
	var rows [][]string
	for _, l := range all {
		var bound []string
		for _, b := range l.Bindings {
			bound = append(bound, b.Exchange)
		}
		rows = append(rows, []string{l.Group, l.Topic, l.Queue, number(l.Messages), number(sum(l.Waiting)),
			number(l.DeadLetters), number(l.Consumers), strings.Join(slices.Compact(bound), ", ")})
	}

	return g.session.Table([]string{"group", "topic", "queue", "messages", "waiting", "dead letters", "consumers",
		"bound to"}, rows)
}

// find lists the queues of groups, by group and topic; those of all groups without names.
func (g *groups) find(ctx context.Context, client *httpapi.Client, names []string) ([]listed, error) {
	queues, err := client.Counts(ctx)
	if err != nil {
		return nil, err
	}
	exchanges, err := client.Exchanges(ctx)
	if err != nil {
		return nil, err
	}
	known, own := map[string]httpapi.Queue{}, g.names()
	for _, q := range queues {
		known[q.Name] = q
	}
	all := []listed{}
	for _, name := range cli.MainQueues(slices.Sorted(maps.Keys(known))) {
		q := known[name]
		l := listed{Queue: name, Type: q.Type, Messages: q.Messages, Consumers: q.Consumers, Bindings: []binding{},
			Waiting: waiting(queues, name), DeadLetterQueue: own.DeadLetterQueue(name)}
		owners := g.owners(exchanges, name, names)
		if len(owners) == 0 {
			continue
		}
		bindings, err := client.Bindings(ctx, name)
		if err != nil {
			return nil, err
		}
		bindings = slices.DeleteFunc(bindings, retire.IsMark)
		if l.Topic = owner(owners, bindings); len(names) > 0 && !slices.Contains(names, owners[l.Topic]) {
			continue
		}
		l.Group = owners[l.Topic]
		l.DeadLetters = new(int64)
		if dead, there := known[l.DeadLetterQueue]; there {
			l.DeadLetters = dead.Messages
		}
		for _, b := range bindings {
			l.Bindings = append(l.Bindings, binding{b.Exchange, b.Key})
		}
		all = append(all, l)
	}
	slices.SortStableFunc(all, func(a, b listed) int { return strings.Compare(a.Group, b.Group) })

	return all, nil
}

// owners are the groups whose queue may have this name, by topic. There are none if no group has
// one of these names.
func (g *groups) owners(exchanges []httpapi.Exchange, queue string, names []string) map[string]string {
	all, wanted := map[string]string{}, len(names) == 0
	for _, x := range exchanges {
		if group, ok := g.groupOf(x.Name, queue); ok && x.Name != "" {
			all[x.Name] = group
			wanted = wanted || slices.Contains(names, group)
		}
	}
	if !wanted {
		return nil
	}

	return all
}

// owner is the topic of a queue: the one whose exchange is bound, else the one with the longest
// name.
func owner(owners map[string]string, bindings []httpapi.Binding) (topic string) {
	bound := map[string]bool{}
	for _, b := range bindings {
		bound[b.Exchange] = true
	}
	for _, x := range slices.Sorted(maps.Keys(owners)) {
		if bound[x] && !bound[topic] || bound[x] == bound[topic] && len(x) > len(topic) {
			topic = x
		}
	}

	return topic
}

// waiting are the queues from which messages go to a main queue by its name.
func waiting(queues []httpapi.Queue, mainQueue string) []counted {
	all := []counted{}
	for _, q := range queues {
		if q.Arguments["x-dead-letter-exchange"] == "" && q.Arguments["x-dead-letter-routing-key"] == mainQueue &&
			q.Arguments[amqp091.QueueMessageTTLArg] != nil {
			all = append(all, counted{q.Name, q.Messages})
		}
	}

	return all
}

func sum(all []counted) *int64 {
	total := int64(0)
	for _, c := range all {
		if c.Messages == nil {
			return nil
		}
		total += *c.Messages
	}

	return &total
}

func number(n *int64) string {
	if n == nil {
		return "?"
	}

	return strconv.FormatInt(*n, 10)
}
