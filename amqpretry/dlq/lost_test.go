package dlq

import (
	"errors"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

// A lost connection is told once, however many connections and steps have noticed it.
func TestExplainLostOnce(t *testing.T) {
	t.Parallel()
	silent, closed := &silentError{time.Second}, amqp091.ErrClosed
	once := explainLost("read", "q", silent).Error()
	for name, err := range map[string]error{
		"one":            silent,
		"of two":         errors.Join(silent, silent),
		"in steps":       errors.Join(silent, errors.Join(silent, silent)),
		"explained once": errors.Join(explainLost("read", "q", silent), silent),
	} {
		assert.EqualError(t, explainLost("read", "q", err), once, name)
	}
	assert.EqualError(t, explainLost("read", "q", errors.Join(silent, errors.Join(silent, closed))),
		once+"\n"+closed.Error())
}
