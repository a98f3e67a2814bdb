package topology

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/management"
)

// Management is the HTTP API of RabbitMQ's management plugin, which knows what AMQP does not tell: which queues there
// are, and whether one is really empty.
type Management struct {
	// URL of the API with user and password, such as http://user:password@host:15672.
	URL string
	// VHost is the virtual host; "" means "/".
	VHost string
	// HTTPClient is used for TLS, timeouts and the like; nil means a plain one.
	HTTPClient *http.Client
}

// Format prints the virtual host and nothing else, under no verb: the URL has a password.
func (m Management) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "topology.Management(virtual host %q)", cmp.Or(m.VHost, "/"))
}

// ManagementError is a request that the management API refused or did not answer: which one, with what status, in whose
// words, and what the user needs for it.
type ManagementError = management.Error

func (m Management) client() (*management.Client, error) {
	return management.New(m.URL, cmp.Or(m.VHost, "/"), m.HTTPClient)
}

// Obsolete lists the retry queues that the broker has for the main queues of these plans and that none of the plans
// uses: also those whose delays nobody remembers, as their arguments tell. names must be those of the old plans.
//
// A plan of the mode off stands for its main queue alone: then all its retry queues are obsolete. Queues of the scope
// "shared" are never listed, as other services may use them: see the function [Obsolete] for these.
//
// The plans must be those of all that consume their main queues: what another service uses under a policy of its own is
// listed as well, and only [Management.Retire] may find out.
func (m Management) Obsolete(ctx context.Context, names Names, now ...Plan) ([]ObsoleteQueue, error) {
	client, err := m.client()
	if err != nil {
		return nil, err
	}
	queues, err := client.Queues(ctx)
	if err != nil {
		return nil, err
	}
	var found []Plan
	for _, queue := range queues {
		for _, plan := range now {
			if old, ok := planOf(plan.Queue, names, queue.Name, amqp.Table(queue.Arguments)); ok {
				found = append(found, old)
				break
			}
		}
	}
	return Obsolete(now, found...), nil
}
