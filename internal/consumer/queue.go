package consumer

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/codec"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/republish"
	"github.com/amqpretry/watermill-retry/internal/wire"
)

// Queue is a queue to consume from, with what its policy makes of it. Its names are pinned: a delivery does not say from
// which queue it came.
type Queue struct {
	Topic  string
	Name   string
	Policy config.Policy
	Plan   topology.Plan
	Names  topology.Names
	// Declare declares the main queue and the plan on a broker of this version; nil when nothing may be declared.
	Declare func(channel *amqp091.Channel, version string) error
	// DeadLettersOf is the main queue whose dead letters lie in Queue; empty for a main queue.
	DeadLettersOf string
	// Forwarder takes the failed messages; nil under policy off.
	Forwarder *republish.QueueForwarder
	// Ended is called when a subscription that Subscribe has returned is over, before its messages' channel is closed. Optional.
	Ended func()
}

func (s *Queue) end() {
	if s.Ended != nil {
		s.Ended()
	}
}

// tell tells the run that has replayed a message, if one wants to know, what has become of it.
func (s *Queue) tell(canary string, outcome wire.Outcome, published *wire.State) {
	if s.Forwarder != nil {
		s.Forwarder.Tell(canary, outcome, published)
	}
}

// arrival is what a delivery of a queue turns out to be.
type arrival struct {
	state   wire.State
	replay  bool
	crashed bool // delivered too often without an answer: its consumers die of it
}

// arrive reads our headers by the rules of the wire format, and the broker's counters.
func (s *Queue) arrive(d *amqp091.Delivery, now time.Time, logger watermill.LoggerAdapter) (a arrival) {
	if s.Policy.Mode == config.ModeOff {
		return a
	}

	kind := wire.Fresh
	if wire.Carries(d.Headers, s.Name) {
		a.state, kind = s.read(d, logger)
	}
	a.state.Queue = s.Name
	codec.SetAge(&a.state, d, kind, s.Policy.MaxAge, now)

	a.replay = kind == wire.Replay
	// What was never delivered before was given its count by a publisher.
	a.crashed = d.Redelivered && codec.DeliveryCount(d.Headers) >= int64(s.Policy.CrashLimit)

	return a
}

func (s *Queue) read(d *amqp091.Delivery, logger watermill.LoggerAdapter) (wire.State, wire.Kind) {
	state, kind := wire.Read(d.Headers, wire.Reading{
		Queue:        s.Name,
		MaxRetries:   s.Policy.MaxRetries(),
		Death:        codec.NewestDeath(d.Headers),
		IsRetryQueue: s.isRetryQueue,
	})
	if kind == wire.UnknownVersion {
		s.reportVersion(d, logger)
	}

	return state, kind
}

func (s *Queue) reportVersion(d *amqp091.Delivery, logger watermill.LoggerAdapter) {
	logger.Info("Message carries retry headers of an unknown version, it is treated as fresh", watermill.LogFields{
		"amqp_queue_name": s.Name, "version": codec.HeaderText(d.Headers[header.Version]),
	})
}

// crashError is what a message failed of that its consumers die of.
func (s *Queue) crashError(d *amqp091.Delivery) error {
	return fmt.Errorf("delivered %d times without an answer, the policy allows %d", codec.DeliveryCount(d.Headers), s.Policy.CrashLimit)
}

// isRetryQueue reports whether name is this queue's retry queue for a delay. It knows those of other policies as well: what
// waits under an old one continues under the new.
func (s *Queue) isRetryQueue(name, delay string) bool {
	if _, err := config.ParseDelay(delay); err != nil {
		return false
	}

	return slices.Contains(s.Names.RetryQueues(s.Name, delay), name)
}

// clean takes from a replayed message what its death has left in the metadata. Only the queue tells whether it is a replay, and
// a marshaler does not know it.
func (a *arrival) clean(msg *message.Message) {
	if a.replay {
		maps.DeleteFunc(msg.Metadata, func(key, _ string) bool { return header.IsPoison(key) })
	}
}
