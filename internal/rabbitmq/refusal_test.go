package rabbitmq

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

func TestHasExpired(t *testing.T) {
	const text = "ACCESS_REFUSED - write access to exchange 'orders.retry' in vhost '/' refused for user 'service'"
	for name, test := range map[string]struct {
		err             error
		expired, unsure bool
	}{
		"expired": {&amqp091.Error{Code: 403, Reason: text + ", backend rabbit_auth_backend_oauth2 returned an " +
			"error: Provided JWT token has expired at timestamp 1795802400 (validated at 1795802401)"}, true, false},
		"missing": {&amqp091.Error{Code: 403, Reason: text}, false, false},
		"cut off": {fmt.Errorf("lost: %w", &amqp091.Error{Code: 403, Reason: text + ", backend rabbit_auth..."}), false,
			true},
		"another": {&amqp091.Error{Code: 404, Reason: "token has expired..."}, false, false},
		"none":    {nil, false, false},
		"no code": {errors.New("token has expired"), false, false},
	} {
		expired, unsure := HasExpired(test.err)
		assert.Equal(t, test.expired, expired, name)
		assert.Equal(t, test.unsure, unsure, name)
	}
}
