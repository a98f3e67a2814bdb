package topologycmd

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// The kinds of objects.
const (
	kindMain     = string(inspect.RoleMain)
	kindExchange = rabbitmq.KindExchange
	kindQueue    = rabbitmq.KindQueue
	kindBinding  = string(inspect.RoleBinding)
)

// object is one line of a report: what it is, and what was found of it.
type object struct {
	Kind  string        `json:"kind"`
	Name  string        `json:"name"`
	State inspect.State `json:"state"`
	// Type of an exchange or a queue, and the Arguments of a queue or a binding, as planned.
	Type      string        `json:"type,omitempty"`
	Arguments amqp091.Table `json:"arguments,omitempty"`
	// Argument, Wanted and Found are those of a conflict.
	Argument string `json:"argument,omitempty"`
	Wanted   string `json:"wanted,omitempty"`
	Found    string `json:"found,omitempty"`
	// Where the object is in a file.
	Where string `json:"where,omitempty"`
	// Detail in words.
	Detail string `json:"detail,omitempty"`
	// Differences of a main queue from what its strategy needs, or of a file, and Fix, lines for a
	// shell that end the conflict.
	Differences []string `json:"differences,omitempty"`
	Fix         string   `json:"fix,omitempty"`

	err error // of the conflict, with the ways out
}

// line is an object as it is planned.
func line(o inspect.Object) object {
	switch {
	case o.Exchange != nil:
		x := *o.Exchange
		return object{Kind: kindExchange, Name: x.Name, Type: x.Type, Detail: details("type "+x.Type, x.Shared)}
	case o.Binding != nil:
		return object{Kind: kindBinding, Name: o.Name, Arguments: o.Binding.Arguments, Detail: routing(*o.Binding)}
	case o.Queue == nil:
		return object{Kind: kindMain, Name: o.Name, Arguments: o.Topic.Plan.MainArguments}
	default:
		return queueObject(*o.Queue)
	}
}

func queueObject(q topology.Queue) object {
	queueType, _ := q.Arguments[amqp091.QueueTypeArg].(string)

	return object{Kind: kindQueue, Name: q.Name, Type: queueType, Arguments: q.Arguments,
		Detail: details(queueType+", "+purpose(q), q.Shared)}
}

// purpose is what a queue is for.
func purpose(q topology.Queue) string {
	exchange, _ := q.Arguments["x-dead-letter-exchange"].(string)
	queue, back := q.Arguments["x-dead-letter-routing-key"].(string)
	switch {
	case q.Landing:
		return "messages that are due, for " + topology.Target{Exchange: exchange, Key: queue}.String()
	case q.Delay > 0 && back:
		return fmt.Sprintf("waits %s, then back to %s", delayText(q), queue)
	case q.Delay > 0:
		return fmt.Sprintf("waits %s, then on to exchange %s", delayText(q), exchange)
	case q.Shared:
		return "messages that no target takes"
	default:
		return "dead letters"
	}
}

// routing is what a binding routes.
func routing(b topology.Binding) string {
	switch {
	case b.Key == "" && len(b.Arguments) == 0:
		return "all messages"
	case b.Key == "":
		return "headers " + argumentsText(b.Arguments)
	default:
		return "key " + b.Key
	}
}

func details(text string, shared bool) string {
	if shared {
		return text + " (shared)"
	}

	return text
}

func argumentsText(table amqp091.Table) string {
	pairs := make([]string, 0, len(table))
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if key != "x-match" { // all of them, in each binding
			pairs = append(pairs, fmt.Sprintf("%s: %v", key, table[key]))
		}
	}

	return strings.Join(pairs, ", ")
}

// with is the object in a state, of which there is this to be said.
func (o object) with(s inspect.State, detail string) object {
	o.State = s
	if detail != "" {
		o.Detail = detail
	}

	return o
}

// differing is an object that is there with these differences, of which there is at least one.
func (o object) differing(all []inspect.Difference) object {
	for _, d := range all {
		o.Differences = append(o.Differences, d.String())
	}
	o = o.with(inspect.Conflict, o.Differences[0])
	if more := len(all) - 1; more > 0 {
		o.Detail += fmt.Sprintf("; and %d more", more)
	}
	o.Argument, o.Wanted, o.Found = all[0].Argument, inspect.Spelled(all[0].Wanted), inspect.Spelled(all[0].Found)

	return o
}

// compared is an object as it was found.
func compared(f inspect.Facts, o inspect.Object) object {
	found := line(o)
	state, err := f.State(o)
	exists, _ := f.Of(o)
	switch {
	case o.Binding != nil:
		return found.with(state, "")
	case state == inspect.Missing && o.Role == inspect.RoleMain:
		return found.with(state, "its service declares it")
	case state == inspect.Missing:
		return found.with(state, "")
	case !exists.Known:
		return found.with(state, "the user may not look at it: it needs a permission on it")
	case o.Role == inspect.RoleMain:
		return found.with(state, "declared by its service")
	default:
		return found.judged(err)
	}
}

// judged is an object that is there, after a declaration, which changes nothing.
func (o object) judged(err error) object {
	var conflict *topology.ConflictError
	var access *topology.AccessError
	var exclusive *topology.ExclusiveError
	switch {
	case err == nil:
		o.State = inspect.Present
	case errors.As(err, &conflict):
		o.State, o.err = inspect.Conflict, err
		o.Argument, o.Wanted, o.Found = conflict.Argument, conflict.Wanted, conflict.Found
		o.Detail = conflictText(o)
	case errors.As(err, &exclusive):
		o.State, o.err, o.Detail = inspect.Conflict, err, "it is the exclusive queue of another connection"
	case errors.As(err, &access):
		o.State, o.Detail = inspect.Untold, "exists, but was not compared: "+missingPermission(access)
	default:
		o.State, o.Detail = inspect.Untold, err.Error()
	}

	return o
}

func conflictText(o object) string {
	if o.Argument == "" {
		return "refused by the broker"
	}

	return fmt.Sprintf("%s: wanted %s, found %s", o.Argument, orUnknown(o.Wanted), orUnknown(o.Found))
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}

	return text
}

func missingPermission(e *topology.AccessError) string {
	if e.Permission == "" {
		return fmt.Sprintf("the user has no permission to declare it (%s %q)", e.Kind, e.Name)
	}

	return fmt.Sprintf("the user has no %s permission on %s %q", e.Permission, e.Kind, e.Name)
}
