package rabbitmq

import (
	"errors"
	"strings"

	"github.com/rabbitmq/amqp091-go"
)

// HasExpired tells whether the broker refuses something because the token of the connection has expired. RabbitMQ cuts
// its texts at 255 bytes, so long names hide that: then it is unsure.
func HasExpired(err error) (expired, unsure bool) {
	var refused *amqp091.Error
	if !errors.As(err, &refused) || refused.Code != amqp091.AccessRefused {
		return false, false
	}

	return strings.Contains(refused.Reason, "token has expired"), strings.HasSuffix(refused.Reason, "...")
}
