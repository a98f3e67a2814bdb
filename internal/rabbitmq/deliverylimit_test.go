package rabbitmq

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

func TestDropLimit(t *testing.T) {
	quorum := func(more ...any) amqp091.Table {
		arguments := amqp091.Table{"x-queue-type": "quorum"}
		for i := 0; i < len(more); i += 2 {
			arguments[more[i].(string)] = more[i+1]
		}
		return arguments
	}
	const byDefault, unknown = "20, the default since RabbitMQ 4.0", "20 on RabbitMQ 4.0 and later"
	for name, test := range map[string]struct {
		arguments amqp091.Table
		limits    map[string]string // by version; "" is not told
	}{
		"no type": {nil, map[string]string{"4.3.6": "", "": ""}},
		"classic": {amqp091.Table{"x-queue-type": "classic", "x-delivery-limit": 5},
			map[string]string{"4.3.6": "", "": ""}},
		"quorum": {quorum(), map[string]string{"3.10.8": "", "3.13.7": "", "4.0.5": byDefault,
			"4.1.0-beta.4": byDefault, "10.0": byDefault, "": unknown, "none": unknown}},
		"dead letter": {quorum("x-dead-letter-exchange", "dlx", "x-delivery-limit", 5),
			map[string]string{"3.10.8": "", "4.0.5": "", "": ""}},
		"empty name": {quorum("x-dead-letter-exchange", ""), map[string]string{"4.0.5": ""}},
		"a limit":    {quorum("x-delivery-limit", int32(5)), map[string]string{"3.10.8": "5", "4.0.5": "5", "": "5"}},
		"zero":       {quorum("x-delivery-limit", int64(0)), map[string]string{"3.10.8": "0", "4.0.5": "0", "": "0"}},
		"unlimited": {quorum("x-delivery-limit", -1), map[string]string{"3.10.8": "-1, which RabbitMQ 3.10.8 takes " +
			"for 0", "4.0.5": "", "": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			for version, limit := range test.limits {
				found, drops := DropLimit(test.arguments, version)
				assert.Equal(t, limit, found, "version %q", version)
				assert.Equal(t, limit != "", drops, "version %q", version)
			}
		})
	}
}
