// Package management says where the management API of RabbitMQ is, to the packages that can ask it.
package management

import (
	"cmp"
	"fmt"
	"net/http"
)

// API is the HTTP API of RabbitMQ's management plugin. Unlike AMQP it lists queues, bindings and
// policies, and counts all messages of a queue.
type API struct {
	// URL of the API with user and password, such as http://user:password@host:15672.
	URL string
	// VHost is the virtual host; "" means that of the connection beside it, or "/".
	VHost string
	// HTTPClient is used for TLS, timeouts and the like; nil means a plain one.
	HTTPClient *http.Client
}

// Format prints the virtual host and nothing else, under any verb: the URL has a password.
func (a API) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "management.API(virtual host %q)", cmp.Or(a.VHost, "/"))
}
