// Package rabbit is the AMQP client of the tests: it publishes, takes and counts messages straight
// on a broker, without the library that is tested.
package rabbit

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
)

// Client works on one broker. What publishes has a connection of its own each time; all else shares
// one, which is opened again after it was lost. Methods without an error fail the test, so they
// belong into its goroutine.
type Client struct {
	URI string

	t testing.TB

	mu         sync.Mutex
	connection *amqp091.Connection // of kept
}

// New returns a client of the broker at uri. It does not connect.
func New(t testing.TB, uri string) *Client { return &Client{URI: uri, t: t} }

// Try calls f with a channel, and returns its error, or why there is no channel.
func (c *Client) Try(f func(*amqp091.Channel) error) error {
	connection, err := amqp091.Dial(c.URI)
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}

	return f(channel)
}

// kept is [Client.Try] on a connection that is kept until it is lost, or the test ends, because a
// connection costs the broker more than most operations. Nothing is published on it, as an alarm of
// the broker would stop it.
func (c *Client) kept(f func(*amqp091.Channel) error) error {
	connection, err := c.keep()
	if err != nil {
		return err
	}
	channel, err := connection.Channel()
	if err != nil && connection.IsClosed() { // it was lost, which is found only now
		if connection, err = c.keep(); err != nil {
			return err
		}
		channel, err = connection.Channel()
	}
	if err != nil {
		return err
	}
	defer channel.Close()

	return f(channel)
}

func (c *Client) keep() (*amqp091.Connection, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connection == nil || c.connection.IsClosed() {
		connection, err := amqp091.Dial(c.URI)
		if err != nil {
			return nil, err
		}
		c.t.Cleanup(func() { _ = connection.Close() })
		c.connection = connection
	}

	return c.connection, nil
}

// Close closes the connection that is kept. The next use opens another one.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connection != nil {
		_ = c.connection.Close()
	}
}

// Do is [Client.Try] for what must succeed.
func (c *Client) Do(f func(*amqp091.Channel) error) {
	c.t.Helper()
	require.NoError(c.t, c.Try(f))
}

// Dial opens a connection. It is closed when the test ends.
func (c *Client) Dial() *amqp091.Connection {
	c.t.Helper()
	connection, err := amqp091.Dial(c.URI)
	require.NoError(c.t, err, "dial %s", c.URI)
	c.t.Cleanup(func() { _ = connection.Close() })

	return connection
}

// Channel opens a channel on a connection of its own, which is closed when the test ends.
func (c *Client) Channel() *amqp091.Channel {
	c.t.Helper()
	channel, err := c.Dial().Channel()
	require.NoError(c.t, err)

	return channel
}

// Version returns the version of the broker.
func (c *Client) Version() string {
	c.t.Helper()
	connection, err := amqp091.Dial(c.URI)
	require.NoError(c.t, err)
	defer connection.Close()
	version, _ := connection.Properties["version"].(string)

	return version
}

// AtLeast tells whether the broker is of that version or a later one.
func (c *Client) AtLeast(major, minor int) bool {
	c.t.Helper()
	var found [2]int
	version := c.Version()
	_, err := fmt.Sscanf(version, "%d.%d", &found[0], &found[1])
	require.NoError(c.t, err, version)

	return found[0] > major || found[0] == major && found[1] >= minor
}

// Declare declares a durable queue, and removes it when the test ends.
func (c *Client) Declare(queue string, arguments amqp091.Table) {
	c.t.Helper()
	err := c.kept(func(channel *amqp091.Channel) error {
		_, err := channel.QueueDeclare(queue, true, false, false, false, arguments)
		return err
	})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { c.Remove("", queue) })
}

// Remove deletes queues and an exchange (none for ""), as far as they and the broker are there.
func (c *Client) Remove(exchange string, queues ...string) {
	_ = c.kept(func(channel *amqp091.Channel) error {
		for _, queue := range queues {
			if _, err := channel.QueueDelete(queue, false, false, false); err != nil {
				return err
			}
		}
		if exchange == "" {
			return nil
		}

		return channel.ExchangeDelete(exchange, false, false)
	})
}

// SharedLadders are the names of ladders that RemovePlan leaves, because other tests use them.
var SharedLadders []string

// IsShared reports whether a ladder is one of [SharedLadders].
func IsShared(ladder *topology.Ladder) bool { return slices.Contains(SharedLadders, ladder.Name()) }

// RemovePlan deletes a main queue and all that its plan has, with what its ladder shares, as far as
// they and the broker are there.
func (c *Client) RemovePlan(plan topology.Plan) {
	if plan.Ladder != nil && !IsShared(plan.Ladder) {
		c.RemovePlan(plan.Ladder.Shared())
	}
	var queues []string
	for _, queue := range plan.Queues {
		queues = append(queues, queue.Name)
	}
	if plan.Queue != "" { // what a ladder shares has none
		queues = append(queues, plan.Queue)
	}
	c.Remove("", queues...)
	for _, exchange := range plan.Exchanges {
		c.Remove(exchange.Name)
	}
}

// Depth returns how many messages are ready in a queue; -1 when it is not there, or the broker does
// not answer. The broker asks a quorum queue for no longer than 250 ms and then says 0, so a 0
// counts only when it is said again.
func (c *Client) Depth(queue string) int {
	n := -1
	_ = c.kept(func(channel *amqp091.Channel) error {
		for range 3 {
			found, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
			if err != nil {
				return err
			}
			if n = found.Messages; n > 0 {
				break
			}
		}

		return nil
	})

	return n
}

// Consumers returns how many consumers a queue has; -1 when it is not there, or the broker does not
// answer.
func (c *Client) Consumers(queue string) int {
	n := -1
	_ = c.kept(func(channel *amqp091.Channel) error {
		found, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err == nil {
			n = found.Consumers
		}

		return err
	})

	return n
}

// Has waits until a queue has exactly n ready messages.
func (c *Client) Has(queue string, n int) {
	c.t.Helper()
	there := func() bool { return c.Depth(queue) == n }
	await.Until(c.t, there, "%d messages in queue %s", n, queue)
}

// Idle waits until nobody consumes from a queue.
func (c *Client) Idle(queue string) {
	c.t.Helper()
	idle := func() bool { return c.Consumers(queue) == 0 }
	await.Until(c.t, idle, "queue %s has consumers", queue)
}
