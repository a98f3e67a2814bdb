package tests

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// Where a permission is missing, nobody is disturbed by attempts to fix that.
func TestMissingPermissionIsNoExpiry_OwnBroker(t *testing.T) {
	t.Parallel()
	b := &obsoleteBroker{broker: brokertest.Shared(t)}
	user, queue := uniqueName("user"), uniqueName("queue")
	b.put(t, `{"password": "guest", "tags": ""}`, "users", user)
	b.permit(t, "/", user, ".*", ".*", ".*")
	svc := start(t, setup{URI: strings.Replace(b.broker.URI, "guest:", user+":", 1), Queue: queue, QueueType: "quorum",
		KeepObjects: true, Tiers: true, Handler: byFate})
	b.permit(t, "/", user, ".*", `^amq\.default$`, ".*")
	svc.publish("once-1")
	// By then the connection is so old that it might have credentials which have expired.
	await.Until(t, func() bool {
		held := svc.Held()
		return len(held) > 0 && held[len(held)-1].For > 15*time.Second
	}, "it is held")
	assert.Empty(t, svc.Logs.with("its token seems to have expired"))
	svc.publish("ok")
	await.Until(t, func() bool { return len(svc.Calls.of("ok")) == 1 }, "others are handled")
	b.permit(t, "/", user, ".*", ".*", ".*")
	await.Until(t, func() bool { return len(svc.Calls.of("once-1")) == 2 }, "it goes on with the permission")
}

// renewed is a mechanism that brings a new token at each dial.
type renewed struct{ lives time.Duration }

func (r renewed) Mechanism() string { return "PLAIN" }
func (r renewed) Response() string {
	return fmt.Sprintf("\x00%s\x00%s", "service", token(time.Now().Add(r.lives)))
}

// Tokens of OAuth 2 that end after seconds. With the time of their end connections live on, and
// without it they are opened again: the broker refuses what is asked of them, or closes them.
// Everything is handled and retried either way.
func TestTokens_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.Start(t)
	enabled := filepath.Join(broker.Dir, "etc", "enabled_plugins")
	require.NoError(t, os.WriteFile(enabled, []byte("[rabbitmq_auth_backend_oauth2].\n"), 0o600))
	broker.Ctl("eval", fmt.Sprintf(`
		application:load(rabbitmq_auth_backend_oauth2),
		application:set_env(rabbitmq_auth_backend_oauth2, resource_server_id, <<"rabbitmq">>),
		application:set_env(rabbitmq_auth_backend_oauth2, key_config, [{default_key, <<"k">>}, {signing_keys,
			#{<<"k">> => {map, #{<<"kty">> => <<"oct">>, <<"alg">> => <<"HS256">>, <<"k">> => <<"%s">>,
			<<"kid">> => <<"k">>}}}}]),
		application:set_env(rabbit, channel_tick_interval, 500), %% after which a channel asks for permissions again
		application:set_env(rabbit, auth_backends, [rabbit_auth_backend_internal, rabbit_auth_backend_oauth2]),
		rabbit_plugins:ensure("%s").`, base64.RawURLEncoding.EncodeToString(tokenKey), enabled))
	const lives = 8 * time.Second
	asks := func(tells bool, asked *atomic.Int64) setup {
		return setup{Options: amqpretry.Options{Credentials: func(context.Context) (config.Credentials, error) {
			asked.Add(1)
			expires := time.Now().Add(lives)
			c := config.Credentials{User: "service", Password: token(expires)}
			if tells {
				c.Expires = expires
			}

			return c, nil
		}}}
	}
	each(t, map[string]func(asked *atomic.Int64) setup{
		"with their end": func(asked *atomic.Int64) setup { return asks(true, asked) },
		"without":        func(asked *atomic.Int64) setup { return asks(false, asked) },
		"kept too long": func(asked *atomic.Int64) setup {
			var kept config.Credentials
			var mu sync.Mutex
			s := asks(true, asked)
			next := s.Options.Credentials
			s.Options.Credentials = func(ctx context.Context) (_ config.Credentials, err error) {
				mu.Lock()
				defer mu.Unlock()
				if time.Until(kept.Expires) < time.Second {
					kept, err = next(ctx)
				}

				return kept, err
			}

			return s
		},
		"by a mechanism": func(*atomic.Int64) setup {
			return setup{Configure: func(c *amqp.Config) {
				c.Connection.AmqpConfig = &amqp091.Config{SASL: []amqp091.Authentication{renewed{lives}}}
			}}
		},
	}, func(t *testing.T, name string, begin func(asked *atomic.Int64) setup) {
		var asked atomic.Int64
		s := begin(&asked)
		s.URI, s.QueueType, s.KeepObjects, s.Handler = broker.URI, "quorum", true, byFate
		svc := start(t, s)
		publisher := must(svc.Retrier.NewPublisher())(t)
		client := must(dlq.Open(t.Context(), dlq.Config{URI: broker.URI, NoDeliveryLimitPolicy: true,
			AMQP: &amqp091.Config{SASL: []amqp091.Authentication{renewed{lives}}}}))(t)
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		var ids []string
		for began := time.Now(); time.Since(began) < 3*lives; {
			id := fmt.Sprintf("once-%d", len(ids))
			ids = append(ids, id)
			require.NoError(t, publisher.Publish(svc.Queue, message.NewMessage(id, nil)))
			<-time.After(lives / 4)
		}
		await.Until(t, func() bool {
			for _, id := range ids {
				if len(svc.Calls.of(id)) < 2 {
					return false
				}
			}

			return true
		}, "all are retried")
		await.Until(t, func() bool {
			_, err := client.Queue(svc.Queue).Stat(t.Context(), dlq.Filter{})
			return err == nil
		}, "the dead-letter queue can be looked at")
		switch {
		case name == "kept too long": // most of it is over before the next one comes
		case name == "with their end":
			assert.Empty(t, svc.Events(retry.EventDisconnected))
			assert.Empty(t, svc.Logs.with("its token seems to have expired"))
			assert.Greater(t, asked.Load(), int64(6), "three connections, three times")
		case svc.Broker.AtLeast(4, 3):
			assert.NotEmpty(t, svc.Events(retry.EventDisconnected), "the broker closes the connection")
		default:
			told := svc.Logs.with("its token seems to have expired")
			assert.GreaterOrEqual(t, len(told), 2, "copies and publisher")
		}
	})
}

var tokenKey = []byte("a key for tests, of thirty-two bytes or more")

// token is one that the broker trusts until then.
func token(expires time.Time) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	signed := part(`{"alg":"HS256","typ":"JWT","kid":"k"}`) + "." + part(fmt.Sprintf(`{"sub":"service",`+
		`"client_id":"service","aud":["rabbitmq"],"exp":%d,`+
		`"scope":["rabbitmq.configure:*/*","rabbitmq.write:*/*","rabbitmq.read:*/*"]}`, expires.Unix()))
	mac := hmac.New(sha256.New, tokenKey)
	mac.Write([]byte(signed))

	return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
