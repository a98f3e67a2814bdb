package publish

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/retry"
)

// ForwarderSettings say how copies of failed messages are published.
type ForwarderSettings struct {
	Connection connection.Settings
	Logger     watermill.LoggerAdapter
	// HoldWarning is how long a delivery is held before that is reported.
	HoldWarning time.Duration
	// Redeclare is false when nothing may be declared.
	Redeclare bool
}

func (s ForwarderSettings) emit(e retry.Event) { s.Connection.Emit(e) }

// Forwarder publishes the copies of failed messages over a connection of its own, so that a blocked publisher never
// stops acknowledgements. The connection is opened at the first failure.
type Forwarder struct {
	settings   ForwarderSettings
	connection *connection.Connection

	ctx    context.Context // ends with Close
	cancel context.CancelCauseFunc

	returnPaths returnPaths
	notices     *notices

	access Object // the permission to publish dead letters by the default exchange
}

// NewForwarder returns a forwarder that is not connected yet.
func NewForwarder(settings ForwarderSettings) *Forwarder {
	ctx, cancel := context.WithCancelCause(context.Background())

	connection := connection.New(settings.Connection, settings.Logger)

	return &Forwarder{
		settings:    settings,
		connection:  connection,
		notices:     newNotices(ctx, connection, settings.Logger),
		ctx:         ctx,
		cancel:      cancel,
		returnPaths: returnPaths{paths: map[string]*returnPath{}},
	}
}

// ForQueue returns what publishes the copies of a main queue: one confirm channel for each and each exchange, so that a
// broken queue stops no other. QueueForwarder.Retire gives it up.
func (f *Forwarder) ForQueue(plan topology.Plan) *QueueForwarder { return newQueueForwarder(f, plan) }

// Close ends all forwards that still wait; their deliveries stay unacknowledged. It returns at the deadline at the
// latest.
func (f *Forwarder) Close(deadline time.Time) {
	f.notices.flush(deadline)
	f.cancel(connection.ErrClosed)
	f.returnPaths.stop()
	f.connection.Close(deadline)
}
