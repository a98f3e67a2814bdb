package topologycmd

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// state is what was found of an object.
type state string

// The states.
const (
	statePresent  state = "present"  // as planned
	stateMissing  state = "missing"  // apply would create it, unless it is a main queue
	stateConflict state = "conflict" // it is there, and different
	stateUnseen   state = "unseen"   // it could not be seen whether it is there, or whether it is as planned
	stateObsolete state = "obsolete" // a retry queue or a rejected exchange that nothing uses: see prune
	stateCreated  state = "created"
	statePlanned  state = "planned" // nobody has looked
)

// The kinds of objects.
const (
	kindMain     = "main queue"
	kindExchange = rabbitmq.KindExchange
	kindQueue    = rabbitmq.KindQueue
	kindBinding  = "binding"
)

// object is one line of a report: what it is, and what was found of it.
type object struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	State state  `json:"state"`
	// Type of an exchange or a queue, and the Arguments of a queue or a binding, as planned.
	Type      string        `json:"type,omitempty"`
	Arguments amqp091.Table `json:"arguments,omitempty"`
	// Argument, Wanted and Found are those of a conflict.
	Argument string `json:"argument,omitempty"`
	Wanted   string `json:"wanted,omitempty"`
	Found    string `json:"found,omitempty"`
	// Detail in words.
	Detail string `json:"detail,omitempty"`
	// Differences of a main queue from what its strategy needs, and Fix, lines for a shell that end
	// the conflict.
	Differences []string `json:"differences,omitempty"`
	Fix         string   `json:"fix,omitempty"`

	err error // of the conflict, with the ways out
}

// mainQueue is a main queue with the arguments that its strategy needs.
func mainQueue(plan topology.Plan) object {
	return object{Kind: kindMain, Name: plan.Queue, Arguments: plan.MainArguments}
}

func exchangeObject(x topology.Exchange) object {
	return object{Kind: kindExchange, Name: x.Name, Type: x.Type, Detail: details("type "+x.Type, x.Shared)}
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

func bindingObject(b topology.Binding) object {
	detail := "key " + b.Key
	switch {
	case b.Key == "" && len(b.Arguments) == 0:
		detail = "all messages"
	case b.Key == "":
		detail = "headers " + argumentsText(b.Arguments)
	}

	return object{Kind: kindBinding, Name: b.Exchange + " -> " + b.Queue + b.ToExchange, Arguments: b.Arguments,
		Detail: detail}
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
func (o object) with(s state, detail string) object {
	o.State = s
	if detail != "" {
		o.Detail = detail
	}

	return o
}

// judged is the object after a declaration that changes nothing, as the object was there before.
func (o object) judged(err error, planned amqp091.Table) object {
	var conflict *topology.ConflictError
	var access *topology.AccessError
	var exclusive *topology.ExclusiveError
	switch {
	case err == nil:
		o.State = statePresent
	case errors.As(err, &conflict):
		o.State, o.err = stateConflict, err
		o.Argument, o.Wanted, o.Found = conflict.Argument, conflict.Wanted, conflict.Found
		if value, sent := planned[o.Argument]; sent && o.Wanted == "" { // the broker cuts its text at 255 bytes
			o.Wanted = fmt.Sprint(value)
			conflict.Wanted = o.Wanted
		}
		o.Detail = conflictText(o)
	case errors.As(err, &exclusive):
		o.State, o.err, o.Detail = stateConflict, err, "it is the exclusive queue of another connection"
	case errors.As(err, &access):
		o.State, o.Detail = stateUnseen, "exists, but was not compared: "+missingPermission(access)
	default:
		o.State, o.Detail = stateUnseen, err.Error()
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
