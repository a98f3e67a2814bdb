package dlq

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
)

// AccessError says which permission the user of the client lacks. Unwrap reaches the
// *topology.AccessError, and so the *amqp091.Error (403). Access is the right that is missing:
// configure, write or read, and the name that it is for.
type AccessError struct{ Access *topology.AccessError }

func (e *AccessError) Error() string {
	a, user := e.Access, ""
	if a.User != "" {
		user = fmt.Sprintf(" for user %q", a.User)
	}

	return fmt.Sprintf("%s %q: no %s permission%s: browsing a dead-letter queue takes read on it, and configure on "+
		"it and on the queue of the same name with .lock behind; what publishes (replay, move, import) also takes "+
		"write on amq.default (%v)", a.Kind, a.Name, cmp.Or(a.Permission, "sufficient"), user, a.Err)
}

func (e *AccessError) Unwrap() error { return e.Access }

// explainAccess tells what a refusal of the broker (403) means here; other errors stay as they are.
func explainAccess(kind, name string, err error) error {
	if refused := (*amqp091.Error)(nil); !errors.As(err, &refused) || refused.Code != amqp091.AccessRefused {
		return err
	}
	access, explained := (*topology.AccessError)(nil), topology.Explain("", kind, name, err)
	if !errors.As(explained, &access) { // somebody else has it for himself
		return explained
	}

	return &AccessError{Access: access}
}
