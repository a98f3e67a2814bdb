package amqpretry_test

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
)

// All that are wrong are reported at once, and a password is not shown.
func TestAddressesAreChecked(t *testing.T) {
	t.Parallel()

	_, err := adapter.New(durable(),
		amqpretry.Options{Addresses: []string{"rabbit-2:0", "rabbit-3", "", "amqp://user:secret@rabbit-4:5672/"}})
	require.Error(t, err)
	assert.Equal(t, []string{"Options.Addresses[0]", "Options.Addresses[2]", "Options.Addresses[3]"}, paths(err))
	assert.ErrorContains(t, err, `"rabbit-2:0"`)
	assert.ErrorContains(t, err, `"…@rabbit-4:5672/"`)
	assert.NotContains(t, err.Error(), "secret")

	field := (*config.FieldError)(nil)
	require.ErrorAs(t, err, &field)
	assert.Equal(t, `"rabbit-2:0"`, field.Found)
	assert.Contains(t, field.Wanted, "host:port")
}

// The config for watermill-amqp's own clients knows all nodes, and is as it was where there is only
// one.
func TestConfigKnowsAllAddresses(t *testing.T) {
	t.Parallel()

	asked, failed := []string{}, errors.New("no route")
	conf := durable()
	conf.Connection.AmqpConfig = &amqp091.Config{ChannelMax: 7, Dial: func(_, address string) (net.Conn, error) {
		asked = append(asked, address)
		return nil, failed
	}}
	retrier := retrierOf(t, conf, amqpretry.Options{Addresses: []string{"rabbit-2:5673", "rabbit-3"}})

	connection := retrier.Config().Connection
	assert.Equal(t, uint16(7), connection.AmqpConfig.ChannelMax, "what else the user has set")
	_, err := amqp091.DialConfig(connection.AmqpURI, *connection.AmqpConfig)
	require.ErrorIs(t, err, failed)
	assert.Equal(t, []string{"127.0.0.1:1", "rabbit-2:5673", "rabbit-3:5672"}, asked)

	conf.Connection.AmqpURI, conf.Connection.AmqpConfig = "amqps://user@rabbit-1/v", nil
	conf.Connection.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS13}
	retrier = retrierOf(t, conf, amqpretry.Options{Addresses: []string{"rabbit-2"}})
	connection = retrier.Config().Connection
	require.NoError(t, retrier.Config().ValidateSubscriber())
	assert.Equal(t, "amqp://user@rabbit-1/v", connection.AmqpURI, "TLS is the dialer's")
	assert.Nil(t, connection.TLSConfig)
	assert.Nil(t, connection.AmqpConfig.TLSClientConfig)

	connection = retrierOf(t, conf, amqpretry.Options{}).Config().Connection
	assert.Equal(t, "amqps://user@rabbit-1/v", connection.AmqpURI)
	assert.Nil(t, connection.AmqpConfig)
}
