package topology

import (
	"fmt"
)

// ChannelsError says that a connection has no channel left. Each subscription takes one; so does each main queue, for
// each exchange, of which messages have failed within the last two minutes, on the connection for copies.
type ChannelsError struct {
	Max int // as negotiated
	Err error
}

func (e *ChannelsError) Error() string {
	return fmt.Sprintf("all %d channels of the connection are in use; end subscriptions that are not needed, spread "+
		"them over several subscribers and retriers, or raise channel_max, the broker's and that of "+
		"Config.Connection.AmqpConfig (%v)", e.Max, e.Err)
}

// Unwrap returns amqp091.ErrChannelMax.
func (e *ChannelsError) Unwrap() error { return e.Err }
