package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/middleware"
)

// ForwarderSettings say how copies of failed messages are published.
type ForwarderSettings struct {
	Connection ConnectionSettings
	Logger     watermill.LoggerAdapter
	// HoldWarning is how long a delivery is held before that is reported.
	HoldWarning time.Duration
	// Redeclare is false when nothing may be declared.
	Redeclare bool
}

func (s ForwarderSettings) emit(e middleware.Event) { s.Connection.Emit(e) }

// Forwarder publishes the copies of failed messages over a connection of its own, so that a blocked publisher never stops
// acknowledgements. The connection is opened at the first failure.
type Forwarder struct {
	settings   ForwarderSettings
	connection *Connection

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	lanes map[string]*Lane

	upkeep upkeep

	accessible atomic.Pointer[Link] // on which dead letters may be published by the default exchange
}

// NewForwarder returns a forwarder that is not connected yet.
func NewForwarder(settings ForwarderSettings) *Forwarder {
	ctx, cancel := context.WithCancelCause(context.Background())

	return &Forwarder{
		settings:   settings,
		connection: NewConnection(settings.Connection, settings.Logger),
		ctx:        ctx,
		cancel:     cancel,
		lanes:      map[string]*Lane{},
		upkeep:     upkeep{ways: map[string]*wayBack{}},
	}
}

// Lane gives the lane of a main queue: one confirm channel for each and each exchange, so that a broken queue stops no other.
func (f *Forwarder) Lane(plan topology.Plan) *Lane {
	f.mu.Lock()
	defer f.mu.Unlock()

	l := f.lanes[plan.Queue]
	if l == nil {
		l = newLane(f, plan)
		f.lanes[plan.Queue] = l
	}

	return l
}

// Close ends all forwards that still wait; their deliveries stay unacknowledged. It returns at the deadline at the latest.
func (f *Forwarder) Close(deadline time.Time) {
	f.cancel(ErrClosed)
	f.upkeep.stop()
	f.connection.Close(deadline)
}
