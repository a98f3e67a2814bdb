package middleware_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/engine"
	"github.com/amqpretry/watermill-retry/retry"
)

// deadLetterDelivery is the delivery of a dead letter, which wants to know why its handler has
// failed.
type deadLetterDelivery struct {
	*delivery
	failures []error
	texts    []string
}

func (d *deadLetterDelivery) Failed(_ string, err error, text string) {
	d.failures, d.texts = append(d.failures, err), append(d.texts, text)
}

// The handler of a dead letter is called as it is, and the retrier is told why it has failed,
// whichever way it does.
func TestDeadLetterFailureIsTold(t *testing.T) {
	boom := errors.New("secret")
	for name, c := range map[string]struct {
		handler message.HandlerFunc
		want    func(*testing.T, error)
		nacked  bool
	}{
		"success": {handler: failing(nil)},
		"error": {
			handler: failing(boom),
			want:    func(t *testing.T, err error) { t.Helper(); assert.Equal(t, boom, err) },
		},
		"panic": {
			handler: panicking(boom),
			want:    func(t *testing.T, err error) { t.Helper(); assert.ErrorAs(t, err, new(*retry.PanicError)) },
		},
		"goexit": {
			handler: calling(func(*message.Message) error { runtime.Goexit(); return nil }), nacked: true,
			want: func(t *testing.T, err error) { t.Helper(); assert.ErrorContains(t, err, "Goexit") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := &deadLetterDelivery{delivery: newDelivery()}
			d.policy = config.Policy{Mode: config.ModeOff}
			msg := message.NewMessage("uuid", nil)
			msg.SetContext(retry.NewDeadLetterContext(engine.WithDelivery(context.Background(), d), retry.DeadLetter{}))
			d.under(&engine.Engine{ErrorText: func(error) string { return "redacted" }})

			var err error
			atGoexit(func(msg *message.Message) ([]*message.Message, error) {
				_, err = retrying(c.handler)(msg)
				return nil, err
			}, msg)

			assert.Zero(t, d.inside, "it has left")
			assert.Empty(t, d.settled, "nothing is decided")
			if c.want == nil {
				assert.NoError(t, err)
				assert.Empty(t, d.failures)

				return
			}
			if assert.Len(t, d.failures, 1) {
				c.want(t, d.failures[0])
			}
			assert.Equal(t, []string{"redacted"}, d.texts)
			if c.nacked {
				assertClosed(t, msg.Nacked())
			} else {
				assert.Equal(t, d.failures[0], err, "the router nacks it")
			}
		})
	}
}
