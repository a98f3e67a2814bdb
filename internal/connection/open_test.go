package connection

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/retry"
)

// A connection is a problem while somebody needs it, and it is not there.
func TestOpen(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		kind retry.ProblemKind
	}{
		"no broker":       {errors.New("connection refused"), retry.ProblemConnection},
		"password":        {amqp091.ErrCredentials, retry.ProblemCredentials},
		"virtual host":    {&amqp091.Error{Code: amqp091.NotAllowed, Reason: "NOT_ALLOWED"}, retry.ProblemCredentials},
		"broker shutdown": {&amqp091.Error{Code: amqp091.ConnectionForced}, retry.ProblemConnection},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var open Open
			c := New(Settings{
				URI: "amqp://guest:s3cret@broker/", Role: "subscriber", Emit: func(retry.Event) {}, Open: &open,
				AMQP:      &amqp091.Config{Dial: func(string, string) (net.Conn, error) { return nil, test.err }},
				Reconnect: Reconnect{InitialInterval: time.Hour, MaxInterval: time.Hour, Multiplier: 1},
			}, watermill.NopLogger{})
			assert.Empty(t, open.Problems(), "nobody needs it")
			began := time.Now()
			_, err := c.TryLink(t.Context())
			require.ErrorIs(t, err, test.err)
			problems := open.Problems()
			require.Len(t, problems, 1)
			assert.Equal(t, test.kind, problems[0].Kind)
			assert.Equal(t, "subscriber", problems[0].Connection)
			assert.Contains(t, problems[0].Text, test.err.Error())
			assert.NotContains(t, problems[0].Text, "s3cret")
			assert.WithinRange(t, problems[0].Since, began, time.Now())
			require.ErrorIs(t, problems[0].Err, test.err)
			c.Close(time.Now().Add(time.Second))
			assert.Empty(t, open.Problems(), "it is closed")
		})
	}
}
