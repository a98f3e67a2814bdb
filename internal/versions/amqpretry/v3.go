//go:build amqpv3

package amqpretry

import amqpretry "github.com/amqpretry/watermill-retry/amqpretry/amqpretryv3"

type (
	DeadLetterSubscriber = amqpretry.DeadLetterSubscriber
	DelayPublisher       = amqpretry.DelayPublisher
	Group                = amqpretry.Group
	Options              = amqpretry.Options
	Publisher            = amqpretry.Publisher
	Retrier              = amqpretry.Retrier
	Subscriber           = amqpretry.Subscriber
)

const (
	DefaultPrefetch = amqpretry.DefaultPrefetch
)

var (
	ErrClosed = amqpretry.ErrClosed
	New       = amqpretry.New
)
