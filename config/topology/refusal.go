package topology

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// AccessError says that the broker refused the user. Unwrap reaches the *amqp091.Error (403).
type AccessError struct {
	// Kind of the object: KindQueue or KindExchange.
	Kind string
	// Name of the object.
	Name string
	// Permission that is missing: configure, read or write. Empty when the broker did not say, as before 4.0.
	Permission string
	// User whom the broker refused. Empty when it did not say.
	User string
	// Use is what was refused, such as UseConsume. Empty for a declaration of a topology.
	Use string
	Err error
}

// The broker can refuse these too, beside the declaration of a topology.
const (
	UseConsume = "consume"
	UsePublish = "publish"
	UseDeclare = "declare it" // by a publisher
	UseLook    = "read its depth"
)

// needed is the permission that a use takes, for brokers that do not say it.
var needed = map[string]string{UseConsume: "read", UsePublish: "write", UseDeclare: "configure",
	UseLook: "sufficient"}

func (e *AccessError) Error() string {
	user := ""
	if e.User != "" {
		user = fmt.Sprintf(" for user %q", e.User)
	}
	if e.Use != "" { // an operator who provisions the topology is no way out
		return fmt.Sprintf("%s %q: no %s permission%s to %s; grant it with rabbitmqctl set_permissions (%v)",
			e.Kind, e.Name, cmp.Or(e.Permission, needed[e.Use], "sufficient"), user, e.Use, e.Err)
	}
	return fmt.Sprintf("%s %q: no %s permission%s: declaring a topology takes configure, write and read on its "+
		"queues and exchanges, and write on the default exchange (amq.default); grant them, or have an operator "+
		"provision it and set the topology to assume (%v)",
		e.Kind, e.Name, cmp.Or(e.Permission, "sufficient"), user, e.Err)
}

func (e *AccessError) Unwrap() error { return e.Err }

// ExclusiveError says that somebody else has the queue for himself. No permission helps. Unwrap reaches the
// *amqp091.Error (403 or 405).
type ExclusiveError struct {
	// Queue is the name of the queue.
	Queue string
	// VirtualHost of the queue. Empty when the broker did not say.
	VirtualHost string
	// Owned tells that another connection has declared the queue itself exclusive. Else it is a consumer's: either the
	// one that is there is exclusive, or the one that was refused wanted to be, and there are others.
	Owned bool
	Err   error
}

func (e *ExclusiveError) Error() string {
	vhost := shell.Quote(cmp.Or(e.VirtualHost, "/"))
	if e.Owned {
		return fmt.Sprintf("queue %q: another connection has declared it exclusive; find the owner with `rabbitmqctl "+
			"list_queues -p %s name owner_pid` and `rabbitmqctl list_connections pid name user`, and end it, or use "+
			"another queue (%v)", e.Queue, vhost, e.Err)
	}
	return fmt.Sprintf("queue %q: another consumer has it, and one of both is exclusive; find the other with "+
		"`rabbitmqctl list_consumers -p %s` and `rabbitmqctl list_channels pid name user`, and end it, or have "+
		"neither consume exclusively (Config.Consume.Exclusive) (%v)", e.Queue, vhost, e.Err)
}

func (e *ExclusiveError) Unwrap() error { return e.Err }

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
func refused(kind, name, text string, err error) error {
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

	e := &AccessError{Kind: kind, Name: name, Err: err}
	if m := permissionText.FindStringSubmatch(text); m != nil {
		e.Permission = m[1]
	}
	if m := userText.FindStringSubmatch(text); m != nil {
		e.User = m[1]
	}
	return e
}

// ExplainUse turns a refusal of something else than the declaration of a topology into an *[AccessError] or an
// *[ExclusiveError]. Other errors stay as they are.
func ExplainUse(use, kind, name string, err error) error {
	if code := brokerCode(err); explained(err) || code != amqp.AccessRefused && code != amqp.ResourceLocked {
		return err
	}
	err = Explain(kind, name, err)
	if access, is := err.(*AccessError); is { //nolint:errorlint // it was made just now
		access.Use = use
	}
	return err
}
