package httpapi

import (
	"context"
	"fmt"
	"net/http"
)

// Binding routes what is published to an exchange to a queue, or to another exchange.
type Binding struct {
	VHost    string `json:"vhost"`
	Exchange string `json:"source"`
	Queue    string `json:"destination"`
	// ToExchange is the destination of a binding to an exchange. Queue is then empty.
	ToExchange string    `json:"-"`
	Key        string    `json:"routing_key"`
	Arguments  Arguments `json:"arguments"`
	// ID is what the API tells bindings between the same two by.
	ID string `json:"properties_key"`
}

// Bindings lists what routes to a queue, but for the default exchange, which routes to every queue.
// There are none of a queue that is not there, and RabbitMQ 3.10 lists none of a classic queue
// whose node is down.
//
// Upstream: the API lists no bindings of a classic queue whose node is down; no issue known,
// measured; RabbitMQ 3.10; no test; remove when RabbitMQ 3.13 is no longer supported.
func (c *Client) Bindings(ctx context.Context, queue string) ([]Binding, error) {
	all, err := list[Binding](ctx, c, []string{"queues", c.vhost, queue, "bindings"}, "", "")
	if err != nil {
		return nil, err
	}
	var bindings []Binding
	for _, b := range all {
		if b.Queue != queue || b.VHost != c.vhost {
			return nil, c.astray(b.VHost, b.Queue)
		}
		if b.Exchange != "" {
			bindings = append(bindings, b)
		}
	}
	return bindings, nil
}

// Bind adds a binding; its ID does not matter.
func (c *Client) Bind(ctx context.Context, b Binding) error {
	body := map[string]any{"routing_key": b.Key, "arguments": b.Arguments}
	return c.do(ctx, request{method: http.MethodPost,
		path: []string{"bindings", c.vhost, "e", b.Exchange, "q", b.Queue}, body: body, needs: bindingNeeds(b)})
}

// Unbind removes a binding as [Client.Bindings] gave it.
func (c *Client) Unbind(ctx context.Context, b Binding) error {
	return c.do(ctx, request{method: http.MethodDelete,
		path: []string{"bindings", c.vhost, "e", b.Exchange, "q", b.Queue, b.ID}, needs: bindingNeeds(b)})
}

func bindingNeeds(b Binding) string {
	return fmt.Sprintf("write on queue %q and read on exchange %q", b.Queue, b.Exchange)
}
