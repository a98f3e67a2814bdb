package amqpretry_test

import (
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// A URI that cannot be used is refused at once, and nothing of it is told: who cannot read it
// cannot know what belongs to the password.
func TestNewRefusesURIs(t *testing.T) {
	t.Parallel()

	for _, uri := range []string{
		"http://user:SECRET@h/", "user:SECRET@h", "SECRET",
		"amqp://user:%zzSECRET@h/", "amqp://user:SEC%RET@h/", "amqp://user:SECRET@h/%zz",
		"amqp://user:SECRET/x@h:1/", "amqp://user:SECRET?x@h", "amqp://user:SECRET#x@h", "amqp://user:SECRET",
		"amqp://user:SECRET x@h", "amqp://user:SECRET[x@h", "amqp://user:SECRET\x01@h", "amqp://user:SECRET\n@h",
		"amqp://user:SECRET\"@h",
		"amqp://user:SECRET@h:port/", "amqp://user:SECRET@h:99999999999999/", "amqp://user:SECRET@[::1/",
		"amqp://user:SECRET@h/?heartbeat=SECRET",
		// What is read, but as another port, path, query or fragment.
		"amqp://user:12/SECRET@h", "amqp://user:12?SECRET@h", "amqp://user:12#SECRET@h", "amqp://SECRET/x@h",
		"amqp://user:99999999999/SECRET@h",
	} {
		_, err := adapter.New(amqp.NewDurableQueueConfig(uri), amqpretry.Options{})
		require.Equal(t, []string{"Config.Connection.AmqpURI"}, paths(err), uri)
		require.ErrorContains(t, err, "is not an AMQP URI")
		for _, part := range []string{"SEC", "RET", "zz", "user:12", "99999", uri} {
			assert.NotContains(t, err.Error(), part, uri)
		}
		for e := err; e != nil; e = errors.Unwrap(e) { // nor is it behind the text
			assert.NotContains(t, fmt.Sprintf("%+v %#v", e, e), "SECRET", uri)
		}
	}
	for _, uri := range []string{
		"amqp://", "amqp://h", "amqp://h/shop%40home", "amqp://u:p@h/shop@home",
		"amqp://u:p%2F%3F%23%40%3A%25@h:1/a?heartbeat=5", "amqps://[::1]:5671/",
	} {
		retrierOf(t, amqp.NewDurableQueueConfig(uri), amqpretry.Options{})
	}
}

// Who prints a retrier, under whatever verb, sees nothing of its config.
func TestRetrierPrintsNoPassword(t *testing.T) {
	t.Parallel()

	user := url.UserPassword("user", "SECRET/ %")
	conf := amqp.NewDurableQueueConfig((&url.URL{Scheme: "amqp", User: user, Host: "127.0.0.1:1"}).String())
	conf.Connection.AmqpConfig = &amqp091.Config{SASL: []amqp091.Authentication{&amqp091.PlainAuth{Username: "user",
		Password: "SECRET"}}}
	retrier := retrierOf(t, conf, amqpretry.Options{})
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		text := fmt.Sprintf(verb, retrier) + fmt.Sprintf(verb, *retrier) +
			fmt.Sprintf(verb, struct{ Retrier *adapter.Retrier }{retrier}) +
			fmt.Sprintf(verb, []any{retrier, conf.Queue.Durable})
		assert.NotContains(t, text, "SECRET", verb)
		assert.NotContains(t, text, fmt.Sprintf("%x", "SECRET"), verb)
		assert.Contains(t, text, "amqpretry.Retrier", verb)
	}
}
