//go:build amqpv3

package amqpretry

import amqpretry "github.com/amqpretry/watermill-retry/amqpretry/amqpretryv3"

type (
	DeadLetterSubscriber = amqpretry.DeadLetterSubscriber
	ChannelsError        = amqpretry.ChannelsError
	HeldError            = amqpretry.HeldError
	NoAnswerError        = amqpretry.NoAnswerError
	NoMiddlewareError    = amqpretry.NoMiddlewareError
	Options              = amqpretry.Options
	Plug                 = amqpretry.Plug
	ProtectionError      = amqpretry.ProtectionError
	SharedQueueError     = amqpretry.SharedQueueError
	Subscriber           = amqpretry.Subscriber
	TopologyMode         = amqpretry.TopologyMode
)

const (
	DefaultPrefetch = amqpretry.DefaultPrefetch
	TopologyAssume  = amqpretry.TopologyAssume
	TopologyDeclare = amqpretry.TopologyDeclare
)

var (
	ErrClosed = amqpretry.ErrClosed
	New       = amqpretry.New
)
