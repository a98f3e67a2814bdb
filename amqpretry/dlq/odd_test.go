package dlq_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
)

func TestOddQueues(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		main      string
		unclear   bool // the broker's text may not tell what it has
		arguments amqp091.Table
	}{
		"long name classic": {strings.Repeat("n", 230), false, amqp091.Table{}},
		"long name limit": {strings.Repeat("m", 230), true, amqp091.Table{"x-queue-type": "quorum",
			"x-delivery-limit": int64(1<<31 - 1)}},
		"odd name": {"a'b in vhost '/' ü{}%s\"", false, amqp091.Table{"x-queue-type": "quorum",
			"x-delivery-limit": int64(1<<31 - 1)}},
		"numeric key": {"", false, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1),
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "42"}},
		"true key": {"", true, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1),
			"x-dead-letter-exchange": "true", "x-dead-letter-routing-key": "none"}},
		"long dlx": {"", true, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1),
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": strings.Repeat("k", 200)}},
		"lazy":        {"", false, amqp091.Table{"x-queue-mode": "lazy", "x-max-priority": int64(5)}},
		"short limit": {"", true, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int16(3000)}},
		"sac": {"", false, amqp091.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1<<31 - 1),
			"x-single-active-consumer": true}},
		"sac classic": {"", false, amqp091.Table{"x-single-active-consumer": true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := connected(t, brokertest.URI(t))
			main := f.main + test.main
			if test.main != "" {
				main = test.main + watermill.NewShortUUID()[:8] // a broker may be used by several runs
			}
			queue := f.client.DeadLetterQueue(main+".odd", main)
			f.Declare(queue.Name(), test.arguments)
			const n = 1100 // more than two blocks, of 32 and of 1,000
			deadLetters := make([]amqp091.Publishing, n)
			for i := range deadLetters {
				deadLetters[i] = deadletter.New(main, i)
			}
			f.Publish(queue.Name(), deadLetters...)
			stat, err := queue.Stat(t.Context(), dlq.Filter{})
			if unsafe := (*dlq.UnsafeError)(nil); !errors.As(err, &unsafe) || !test.unclear {
				require.NoError(t, err)
				assert.Equal(t, n, stat.Seen)
			}
			f.Has(queue.Name(), n)
		})
	}
}

func TestCredentialsAreNeverShown(t *testing.T) {
	t.Parallel()
	shared := brokertest.URI(t)
	for _, uri := range []string{
		"amqp://user:secret@host:bad/", "amqp://user:secret@127.0.0.1:1/", "://user:secret@x",
		"amqp://user:sec ret@127.0.0.1", "amqp://user:secret@[::1",
		"amqps://user:secret%zz@h", strings.Replace(shared, "guest:guest", "guest:secret", 1),
		strings.TrimRight(shared, "/") + "/secret",
	} {
		_, err := dlq.Open(t.Context(), dlq.Config{URI: uri})
		require.Error(t, err)
		if !strings.HasSuffix(uri, "/secret") { // that is a virtual host
			assert.NotContains(t, err.Error(), "secret")
		}
	}
	assert.NotContains(t, fmt.Sprintf("%v %+v %#v", dlq.Config{URI: "amqp://u:secret@h"},
		dlq.Config{URI: "amqp://u:secret@h"}, dlq.Config{URI: "amqp://u:secret@h"}), "secret")
}
