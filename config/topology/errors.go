package topology

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// The kinds of objects in errors.
const (
	KindQueue    = "queue"
	KindExchange = "exchange"
)

// ConflictError says that the broker has the object already, but other than it is wanted, or that it takes no such
// argument at all. Nothing was changed. Unwrap reaches the *amqp091.Error (406).
type ConflictError struct {
	// Kind of the object: KindQueue or KindExchange.
	Kind string
	// Name of the object.
	Name string
	// Argument that differs, such as x-message-ttl, durable or type. Empty when the broker did not name it.
	Argument string
	// Wanted is the value that was sent: "none" for an absent argument, `""` for an empty one. Empty when unknown.
	Wanted string
	// Found is the value that the object has, spelled alike. Empty when unknown, as for an argument that the broker
	// refuses whatever its value: Err says why.
	Found string
	// WaysOut are what its text says can be done, where that is not the usual.
	WaysOut string
	Err     error
}

func (e *ConflictError) Error() string {
	if e.Argument == "" {
		return fmt.Sprintf("%s %q: refused by the broker: %v", e.Kind, e.Name, e.Err)
	}
	wanted, found := e.Wanted, e.Found
	if wanted == "" {
		wanted = "unknown"
	}
	if strings.Contains(brokerText(e.Err), invalidArg) {
		return fmt.Sprintf("%s %q: the broker refuses the argument %s (wanted %s): %v", e.Kind, e.Name, e.Argument,
			wanted, e.Err)
	}
	if found == "" {
		found = "another value"
	}
	return fmt.Sprintf("%s %q exists with another %s: wanted %s, found %s; %s (%v)", e.Kind, e.Name, e.Argument, wanted,
		found, e.waysOut(), e.Err)
}

// waysOut are for both who may see this: the one whose own main queue is declared other than it is, and the one whose
// retry objects somebody else declared.
func (e *ConflictError) waysOut() string {
	if e.WaysOut != "" {
		return e.WaysOut
	}
	if e.Kind == KindExchange {
		return "ways out: declare it as it is, if it is yours (Config.Exchange); set another name in Names, or " +
			"another Prefix for a ladder; delete it if nothing else " +
			"uses it (it is declared again); or let an operator provision it, and set the topology to assume"
	}
	if e.Argument == amqp.QueueTypeArg && e.Found == amqp.QueueTypeStream {
		return "ways out: another queue; a stream has no retries, as nothing leaves it"
	}
	asItIs := "declare it as it is, if it is your main queue"
	switch e.Argument {
	case "durable", "auto_delete", "exclusive":
		asItIs += " (in Config.Queue)"
	default:
		if e.Found == "none" {
			asItIs += fmt.Sprintf(" (no Config.Queue.Arguments[%q]; a policy on the broker can set it instead)",
				e.Argument)
		} else {
			asItIs += fmt.Sprintf(" (Config.Queue.Arguments[%q])", e.Argument)
		}
	}
	return "ways out: " + asItIs + "; set another name for a retry or dead-letter queue in Names, or another " +
		"Prefix for a ladder; delete it after it is empty (it is declared again); or let an operator provision it, " +
		"and set the topology to assume"
}

func (e *ConflictError) Unwrap() error { return e.Err }

// DeclareError is every other reason for which an object could not be declared, such as a lost connection.
type DeclareError struct {
	// Kind and Name tell the object: KindQueue or KindExchange.
	Kind, Name string
	// Err is the broker's error.
	Err error
}

func (e *DeclareError) Error() string {
	return fmt.Sprintf("%s %q: cannot declare: %v", e.Kind, e.Name, e.Err)
}

func (e *DeclareError) Unwrap() error { return e.Err }

const invalidArg = "invalid arg '"

// The broker's texts, 3.10 to 4.3. Names may hold quotes, so what can be any text is matched as far as it goes; values
// come as none, 'v', or the value 'v' of type 't'. The broker cuts a text at 255 bytes.
//
// Upstream: what a refusal is about is only in its text; no issue known, measured; RabbitMQ 3.10 to 4.3;
// TestExplainConflict, TestExplainAccess, TestRefusals, TestDeclareKnowsWhatItWantedWhenTheBrokerCutsItsText; remove
// when refusals name their object in a field.
var (
	objectText   = regexp.MustCompile(`(?s)(queue|exchange) '(.*)' in vhost '`)
	argumentText = regexp.MustCompile(`in(?:equivalent|valid) arg '([^']*)' for (queue|exchange) '`)
	valuesText   = regexp.MustCompile(`(?s)': received (.*) but current is (.*)$`)
	valueText    = regexp.MustCompile(`(?s)^(?:the value )?'(.*?)(?:'(?: of type '[^']*'| of [^']*\.\.\.)?)?$`)
)

// Explain turns what declaring the object gave into a *[ConflictError], *[AccessError], *[ExclusiveError] or
// *[DeclareError]. The kind and the name that the broker's text has win over the given ones, since a binding or a
// dead-letter exchange may be refused for another object. nil stays nil, and what is explained already stays as it is.
func Explain(kind, name string, err error) error {
	if err == nil || explained(err) {
		return err
	}
	text := brokerText(err)
	if m := objectText.FindStringSubmatch(text); m != nil {
		kind, name = m[1], m[2]
	}
	switch brokerCode(err) {
	case amqp.PreconditionFailed:
		e := &ConflictError{Kind: kind, Name: name, Err: err}
		if m := argumentText.FindStringSubmatch(text); m != nil {
			e.Argument, e.Kind = m[1], m[2]
		}
		if m := valuesText.FindStringSubmatch(text); m != nil {
			e.Wanted, e.Found = value(m[1]), value(m[2])
		}
		return e
	case amqp.AccessRefused, amqp.ResourceLocked:
		return refused(kind, name, text, err)
	default:
		return &DeclareError{Kind: kind, Name: name, Err: err}
	}
}

func explained(err error) bool {
	var conflict *ConflictError
	var access *AccessError
	var exclusive *ExclusiveError
	var declare *DeclareError
	var name *NameError
	return errors.As(err, &name) || errors.As(err, &conflict) || errors.As(err, &access) ||
		errors.As(err, &exclusive) || errors.As(err, &declare)
}

func brokerCode(err error) int {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func brokerText(err error) string {
	var e *amqp.Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// value strips the broker's dress from a value, which may be cut at its end.
func value(text string) string {
	m := valueText.FindStringSubmatch(text)
	switch {
	case m == nil:
		return text
	case m[1] == "":
		return `""`
	default:
		return m[1]
	}
}
