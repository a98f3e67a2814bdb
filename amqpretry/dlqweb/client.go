package dlqweb

import (
	"context"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// client connects when it is first asked, and again as long as that has failed.
func (c *Console) client(ctx context.Context) (*dlq.Client, error) {
	select { // a connection that hangs holds up nobody who does not want to wait
	case c.opening <- struct{}{}:
		defer func() { <-c.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if c.opened != nil {
		return c.opened, nil
	}
	client, err := dlq.Open(ctx, c.config.Broker)
	if err != nil {
		c.config.Logger.Error("Cannot reach the broker", err, nil)
		return nil, err
	}
	c.opened = client

	return client, nil
}

// managementOf is the management API; nil where there is none.
func (c *Console) managementAPI() (*httpapi.Client, error) {
	api := c.config.Broker.Management
	if api.URL == "" {
		return nil, nil
	}

	return httpapi.New(api.URL, c.vhost, api.HTTPClient)
}
