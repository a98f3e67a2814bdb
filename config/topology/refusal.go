package topology

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

const invalidArg = "invalid arg '"

// The broker's texts, 3.10 to 4.3. Names may hold quotes, so what can be any text is matched as far
// as it goes; values come as none, 'v', or the value 'v' of type 't'. The broker cuts a text at 255
// bytes.
//
// Upstream: what a refusal is about is only in its text; no issue known, measured; RabbitMQ 3.10 to
// 4.3; TestExplainConflict, TestExplainAccess, TestRefusals,
// TestDeclareKnowsWhatItWantedWhenTheBrokerCutsItsText; remove when refusals name their object in a
// field.
var (
	objectText   = regexp.MustCompile(`(?s)(queue|exchange) '(.*)' in vhost '`)
	argumentText = regexp.MustCompile(`in(?:equivalent|valid) arg '([^']*)' for (queue|exchange) '`)
	valuesText   = regexp.MustCompile(`(?s)': received (.*) but current is (.*)$`)
	valueText    = regexp.MustCompile(`(?s)^(?:the value )?'(.*?)(?:'(?: of type '[^']*'| of [^']*\.\.\.)?)?$`)
)

// Explain turns what an operation on an object of the broker gave into a *[ConflictError],
// *[AccessError], *[ExclusiveError] or *[DeclareError]. kind is "queue" or "exchange", and use is
// empty for the declaration of a topology. For any other use, such as "consume", only refusals are
// explained, and other errors stay as they are.
//
// The kind and the name that the broker's text has win over the given ones, since a binding or a
// dead-letter exchange may be refused for another object. nil stays nil, and what is explained
// already stays as it is.
func Explain(use, kind, name string, err error) error {
	if err == nil || explained(err) {
		return err
	}
	code, text := brokerCode(err), brokerText(err)
	isRefusal := code == amqp.AccessRefused || code == amqp.ResourceLocked
	if use != "" && !isRefusal {
		return err
	}
	if m := objectText.FindStringSubmatch(text); m != nil {
		kind, name = m[1], m[2]
	}
	switch {
	case isRefusal:
		return refused(use, kind, name, text, err)
	case code == amqp.PreconditionFailed:
		e := &ConflictError{Kind: kind, Name: name, Err: err}
		if m := argumentText.FindStringSubmatch(text); m != nil {
			e.Argument, e.Kind = m[1], m[2]
		}
		if m := valuesText.FindStringSubmatch(text); m != nil {
			e.Wanted, e.Found = value(m[1]), value(m[2])
		}
		return e
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

// The broker's texts, 3.10 to 4.3.
//
// Upstream: what a refusal is about is only in its text.
var (
	permissionText = regexp.MustCompile(`(configure|read|write) access to (?:queue|exchange) '`)
	userText       = regexp.MustCompile(`(?s)' refused for user '(.*)'$`)
	vhostText      = regexp.MustCompile(`(?s)' in vhost '([^']*)'`)
	inUseText      = regexp.MustCompile(`^(?:ACCESS_REFUSED - )?queue '`) // … in exclusive use, which can be cut off
)

// refused explains a 403 or a 405.
func refused(use, kind, name, text string, err error) error {
	owned := brokerCode(err) == amqp.ResourceLocked
	if owned || inUseText.MatchString(text) {
		e := &ExclusiveError{Queue: name, Owned: owned, Err: err}
		if m := vhostText.FindStringSubmatch(text); m != nil {
			e.VirtualHost = m[1]
		}
		return e
	}

	if expired, _ := rabbitmq.HasExpired(err); expired { // a permission would not help
		return fmt.Errorf("%s %q: the connection's token has expired: %w", kind, name, err)
	}

	if strings.Contains(text, "reserved prefix") { // nor here
		return fmt.Errorf("%w: %w", &NameError{Object: kind, Name: name,
			Problem: "names that begin with amq. are the broker's own; give it another name"}, err)
	}

	e := &AccessError{Kind: kind, Name: name, Use: use, Err: err}
	if m := permissionText.FindStringSubmatch(text); m != nil {
		e.Permission = m[1]
	}
	if m := userText.FindStringSubmatch(text); m != nil {
		e.User = m[1]
	}
	return e
}
