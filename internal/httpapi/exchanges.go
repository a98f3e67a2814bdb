package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
)

// Exchange is an exchange of the virtual host.
type Exchange struct {
	VHost     string    `json:"vhost"`
	Name      string    `json:"name"`
	Type      string    `json:"type"`
	Durable   bool      `json:"durable"`
	Internal  bool      `json:"internal"`
	Arguments Arguments `json:"arguments"`
}

// Exchanges lists all exchanges of the virtual host, the broker's own included.
func (c *Client) Exchanges(ctx context.Context) ([]Exchange, error) {
	query := "?columns=vhost,name,type,durable,internal,arguments"
	exchanges, err := list[Exchange](ctx, c, []string{"exchanges", c.vhost}, query, "")
	if err != nil {
		return nil, err
	}
	for _, x := range exchanges {
		if x.VHost != c.vhost {
			return nil, c.elsewhere("exchange", x.VHost, x.Name)
		}
	}
	return exchanges, nil
}

// BindingsFrom lists the queues to which an exchange routes. There are none of an exchange that is
// not there.
func (c *Client) BindingsFrom(ctx context.Context, exchange string) ([]Binding, error) {
	all, err := c.RoutesFrom(ctx, exchange)
	return slices.DeleteFunc(all, func(b Binding) bool { return b.Queue == "" }), err
}

// RoutesFrom lists the queues and the exchanges to which an exchange routes. There are none of an
// exchange that is not there.
func (c *Client) RoutesFrom(ctx context.Context, exchange string) ([]Binding, error) {
	type route struct {
		Binding
		DestinationType string `json:"destination_type"`
	}
	all, err := list[route](ctx, c, []string{"exchanges", c.vhost, exchange, "bindings", "source"}, "", "")
	if err != nil {
		return nil, err
	}
	var bindings []Binding
	for _, b := range all {
		if b.Exchange != exchange || b.VHost != c.vhost {
			return nil, c.elsewhere("exchange", b.VHost, b.Exchange)
		}
		if b.DestinationType != "queue" {
			b.Queue, b.ToExchange = "", b.Queue
		}
		bindings = append(bindings, b.Binding)
	}
	return bindings, nil
}

// RoutesTo lists what routes to an exchange. There are none of an exchange that is not there.
func (c *Client) RoutesTo(ctx context.Context, exchange string) ([]Binding, error) {
	all, err := list[Binding](ctx, c, []string{"exchanges", c.vhost, exchange, "bindings", "destination"}, "", "")
	if err != nil {
		return nil, err
	}
	for i, b := range all {
		if b.Queue != exchange || b.VHost != c.vhost {
			return nil, c.elsewhere("exchange", b.VHost, b.Queue)
		}
		all[i].Queue, all[i].ToExchange = "", exchange
	}
	return all, nil
}

// DeleteExchange deletes an exchange with its bindings.
func (c *Client) DeleteExchange(ctx context.Context, name string) error {
	return c.do(ctx, request{method: http.MethodDelete, path: []string{"exchanges", c.vhost, name},
		needs: fmt.Sprintf("configure on exchange %q", name)})
}

// elsewhere is an answer about something else, as astray is about queues.
func (c *Client) elsewhere(kind, vhost, name string) error {
	return &Error{Method: http.MethodGet, URL: c.base + "/api", User: c.user.Username(), VHost: c.vhost,
		Status: http.StatusOK,
		Err: fmt.Errorf("the answer is about %s %q of the virtual host %q: a proxy in between must leave %%2F in "+
			"paths as it is", kind, name, vhost)}
}
