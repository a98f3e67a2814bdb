package rabbitmq

import (
	"errors"
	"strings"

	"github.com/rabbitmq/amqp091-go"
)

// HasExpired tells whether the broker refuses something because the token of the connection has
// expired. RabbitMQ cuts its texts at 255 bytes, so long names hide that: then it is unsure.
//
// Upstream: a connection whose token has expired stays open, and all it asks is refused;
// rabbitmq/rabbitmq-auth-backend-oauth2#15; RabbitMQ 3.10 and 4.0; TestTokens_OwnBroker,
// TestHasExpired, TestSeldom; remove when RabbitMQ 4.2 is no longer supported.
func HasExpired(err error) (expired, unsure bool) {
	var refused *amqp091.Error
	if !errors.As(err, &refused) || refused.Code != amqp091.AccessRefused {
		return false, false
	}

	return strings.Contains(refused.Reason, "token has expired"), strings.HasSuffix(refused.Reason, "...")
}

// The kinds of objects in errors.
const (
	KindQueue    = "queue"
	KindExchange = "exchange"
)

// What the broker can refuse, beside the declaration of a topology.
const (
	UseConsume = "consume"
	UsePublish = "publish"
	UseDeclare = "declare it" // by a publisher
	UseLook    = "read its depth"
)
