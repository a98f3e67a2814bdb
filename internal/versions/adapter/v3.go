//go:build amqpv3

package adapter

import "github.com/amqpretry/watermill-retry/amqpretry/amqpv3"

type Retrier = amqpv3.Retrier

var New = amqpv3.New
