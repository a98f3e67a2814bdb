package dlqweb_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
)

// A console below /dead-letters of a service's own mux. Whoever asks has signed in before.
func Example() {
	folder, err := os.MkdirTemp("", "dead-letters")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()

	console, err := dlqweb.New(dlqweb.Config{
		Broker: dlq.Config{URI: "amqp://guest:guest@localhost:5672/"},
		Queues: []string{"orders"}, // without the management API
		Prefix: "/dead-letters",
		Authorize: func(r *http.Request) (dlqweb.User, dlqweb.Role, error) {
			user := r.Header.Get("X-User") // set by the service's own middleware
			if user == "" {
				return "", 0, dlqweb.ErrUnauthenticated
			}
			return dlqweb.User(user), dlqweb.RoleReplay, nil
		},
		Folder: folder,
		Audit:  slog.NewJSONHandler(os.Stderr, nil),
	})
	if err != nil {
		panic(err)
	}
	defer func() { _ = console.Close() }()

	mux := http.NewServeMux()
	mux.Handle("/dead-letters/", console)
}

// All mistakes come at once, before the broker is asked.
func ExampleNew() {
	_, err := dlqweb.New(dlqweb.Config{
		Broker:    dlq.Config{URI: "amqp://guest:guest@localhost:5672/"},
		Prefix:    "dead-letters",
		Authorize: func(*http.Request) (dlqweb.User, dlqweb.Role, error) { return "ann", dlqweb.RoleDelete, nil },
	})
	fmt.Println(err)
	// Output:
	// Config.Queues: must be a main queue, or Broker.Management, which finds them, got none
	// Config.Prefix: must be a path such as /dead-letters, got "dead-letters"
	// Config.Folder: must be a folder for undo files, unless ReadOnly or without Authorize, got ""
	// Config.Audit: must be a slog.Handler, unless ReadOnly or without Authorize, got nil
}
