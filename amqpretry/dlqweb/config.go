package dlqweb

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
)

// Config says what the console shows, and to whom.
type Config struct {
	// Broker says how to reach the broker, as for dlq.Open. The console connects when it is first
	// asked, so a service starts without its broker. With Broker.Management it finds the
	// dead-letter queues itself.
	Broker dlq.Config
	// Queues are the main queues whose dead-letter queues are shown, beside those that the
	// management API knows.
	Queues []string
	// Policies are those of the services, by the names of main queues instead of topics: they name
	// the retry queues with the messages that wait. With Broker.Management, retry queues of other
	// delays are found as well.
	Policies config.Policies
	// Prefix is the path under which the handler is mounted without http.StripPrefix, such as
	// /dead-letters. Default: none. A reverse proxy that cuts a prefix off needs none: all links
	// are relative.
	Prefix string
	// Authorize returns who asks and what he may do. It must not trust what a client can set by
	// itself. The answer to ErrUnauthenticated is 401, to an error with a method RetryAfter()
	// time.Duration 429 with that Retry-After, and to others 403. Nil means that everybody has
	// RoleMetadata.
	Authorize func(*http.Request) (User, Role, error)
	// ReadOnly removes all that changes something: no role is higher than RoleView then.
	ReadOnly bool
	// Folder keeps the runs: what was asked for, how far it came, undo files, exports. They have
	// whole messages, so the folder and its files are for their owner only (0700, 0600). One
	// console at a time uses it, and nothing in it is ever deleted. Needed with Authorize, unless
	// ReadOnly.
	Folder string
	// Audit gets a record of every action before it is done: who, from which address, what, which
	// messages, how many, the undo file. If it returns an error, the action is refused. It gets
	// another record, with the outcome, when a run is over, and for what a role does not allow.
	// Needed with Authorize, unless ReadOnly.
	Audit slog.Handler
	// Redact changes a dead letter before anybody sees it: in lists, in details, in exports, and in
	// what filters compare. It gets a copy of its own, whose headers are without those that repeat
	// Error, History and Edits. The message itself is sent, and is in undo files, as it is; nobody
	// can edit it then. Nil redacts nothing.
	Redact func(*dlq.DeadLetter)
	// OnNewCause is called when dead letters have a cause that the queue did not have before, from
	// one goroutine. For it, the console reads queues of up to 10,000 messages when they have
	// grown, once a minute at most. Causes of the first read are not new. Nil means that the
	// console reads no queue for this.
	OnNewCause func(NewCause)
	// Logger for what happens besides. Nil means none.
	Logger watermill.LoggerAdapter
}

// Format prints nothing of it, under no verb: the URI has a password.
func (c Config) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, "dlqweb.Config") }

func (c Config) withDefaults() Config {
	c.Broker.Names = c.Broker.Names.WithDefaults()
	c.Broker.Logger = cmp.Or(c.Broker.Logger, c.Logger)
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
	c.Prefix = strings.TrimSuffix(c.Prefix, "/")

	return c
}

// acts tells whether the console can do more than show.
func (c Config) acts() bool { return c.Authorize != nil && !c.ReadOnly }

// Validate reports everything that cannot be right, as joined *[config.FieldError]s.
func (c Config) Validate() error {
	var all []error
	check := func(ok bool, field, wanted, found string) {
		if !ok {
			all = append(all, &config.FieldError{Path: "Config." + field, Wanted: wanted, Found: found})
		}
	}

	if err := c.Broker.Validate(); err != nil {
		all = append(all, err)
	}
	if err := c.Policies.Validate(); err != nil {
		all = append(all, err)
	}
	for i, name := range c.Queues {
		check(name != "" && len(name) <= maxName, fmt.Sprintf("Queues[%d]", i),
			"the name of a main queue, 1 to 255 bytes", fmt.Sprintf("%q", name))
	}
	check(len(c.Queues) > 0 || c.Broker.Management.URL != "", "Queues", "a main queue, or Broker.Management, which "+
		"finds them", "none")
	check(c.Prefix == "" || strings.HasPrefix(c.Prefix, "/") && !strings.ContainsAny(c.Prefix, "?#{} "), "Prefix",
		"a path such as /dead-letters", fmt.Sprintf("%q", c.Prefix))
	if c.acts() {
		check(c.Folder != "", "Folder", "a folder for undo files, unless ReadOnly or without Authorize", `""`)
		check(c.Audit != nil, "Audit", "a slog.Handler, unless ReadOnly or without Authorize", "nil")
	}
	check(c.Folder == "" || filepath.Clean(c.Folder) != "/", "Folder", "a folder of its own",
		fmt.Sprintf("%q", c.Folder))

	return errors.Join(all...)
}

// maxName is the length of the longest name of a queue.
const maxName = 255
