//go:build !amqpv3

package amqpretry

import "github.com/amqpretry/watermill-retry/amqpretry"

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
