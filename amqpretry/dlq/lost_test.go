package dlq

import (
	"errors"
	"fmt"
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
		once+"\n"+explainLost("read", "q", closed).Error())
	assert.ErrorContains(t, explainLost("read", "q", fmt.Errorf("cannot open a channel: %w", closed)),
		`cannot read "q": the connection was lost; check the network`)
}
