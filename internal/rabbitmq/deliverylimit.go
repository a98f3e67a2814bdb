package rabbitmq

import (
	"fmt"
	"strconv"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// DefaultLimit is the delivery limit of a quorum queue without one of its own, where
// LimitsByDefault.
const DefaultLimit = 20

// LimitsByDefault reports whether a quorum queue without a delivery limit has one, and whether a
// negative limit means none. It is false for a version that cannot be read.
//
// Upstream: a quorum queue has a delivery limit of 20 by default; rabbitmq/rabbitmq-server#11937;
// RabbitMQ 4.0 and later; TestDropLimit, TestLimitOf, TestPlainNackUnderPolicyOff; remove when that
// default is gone.
//
// Upstream: a negative delivery limit is 0; Particular/NServiceBus.RabbitMQ#1828; RabbitMQ 3.10 to
// 3.13; TestDropLimit, TestLimitOf; remove when RabbitMQ 3.13 is no longer supported.
func LimitsByDefault(version string) bool { return AtLeast(version, 4, 0) }

// DropLimit tells whether a queue with these arguments loses messages, because they reach a
// delivery limit and there is no dead-letter exchange, and which limit that is. A policy of the
// broker can set both and cannot be seen.
//
// version is the broker's, such as 4.0.5. Without one it is taken to be 4.0 or later, where there
// is a limit by default, and one below 0 means none; before it meant 0.
//
// Upstream: a quorum queue has a delivery limit of 20 by default.
func DropLimit(arguments amqp091.Table, version string) (limit string, drops bool) {
	if arguments[amqp091.QueueTypeArg] != amqp091.QueueTypeQuorum {
		return "", false
	}
	if _, given := arguments["x-dead-letter-exchange"]; given {
		return "", false
	}
	value, given := arguments["x-delivery-limit"]
	n, _ := header.Integer(value)
	major, _, known := parse(version)
	switch {
	case given && n >= 0:
		return strconv.FormatInt(n, 10), true
	case given && known && major < 4:
		return fmt.Sprintf("%d, which RabbitMQ %s takes for 0", n, version), true
	case given:
		return "", false
	case !known:
		return "20 on RabbitMQ 4.0 and later", true
	case major >= 4:
		return "20, the default since RabbitMQ 4.0", true
	default:
		return "", false
	}
}
