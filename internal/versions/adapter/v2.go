//go:build !amqpv3

package adapter

import "github.com/amqpretry/watermill-retry/amqpretry/amqpv2"

type Retrier = amqpv2.Retrier

var New = amqpv2.New
