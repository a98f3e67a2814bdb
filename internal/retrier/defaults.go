package retrier

import (
	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/middleware"
)

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = watermill.NewSlogLogger(nil)
	}
	if o.Concurrency == 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.CloseTimeout == 0 {
		o.CloseTimeout = DefaultCloseTimeout
	}
	if o.HoldWarning == 0 {
		o.HoldWarning = DefaultHoldWarning
	}
	if o.Topology == "" {
		o.Topology = topology.Declare
	}
	if o.MiddlewareOrder == "" {
		o.MiddlewareOrder = middleware.OrderEnforce
	}
	if o.GroupQueue == nil {
		o.GroupQueue = func(topic, group string) string { return topic + "_" + group }
	}
	o.Names = o.Names.WithDefaults()
}
