package tests

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

// slowDeclares keeps from the broker, on every connection, what is written on a channel from the
// declaration of a queue on: to the client it is a broker that answers everything but that.
type slowDeclares struct {
	mu    sync.Mutex
	queue string
	held  int
	gate  chan struct{}
}

// hold holds the declarations of a queue until the function is called.
func (s *slowDeclares) hold(queue string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate := make(chan struct{})
	s.queue, s.gate = queue, gate

	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.queue = ""
		close(gate)
	})
}

// Held is how many declarations were held so far.
func (s *slowDeclares) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.held
}

func (s *slowDeclares) wrap(conn net.Conn) net.Conn {
	return &slowConn{Conn: conn, slow: s, held: map[uint16][]byte{}}
}

type slowConn struct {
	net.Conn

	slow *slowDeclares

	mu     sync.Mutex
	frames frameReader
	held   map[uint16][]byte // by channel
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var pass []byte
	header := c.frames.read(b, func(frame []byte) {
		channel := binary.BigEndian.Uint16(frame[1:])
		if kept, ok := c.held[channel]; ok {
			c.held[channel] = append(kept, frame...)
		} else if gate := c.slow.takes(frame); gate != nil {
			c.held[channel] = bytes.Clone(frame)
			go c.release(channel, gate)
		} else {
			pass = append(pass, frame...)
		}
	})
	if _, err := c.Conn.Write(append(header, pass...)); err != nil {
		return 0, err
	}

	return len(b), nil
}

// takes gives what a frame has to wait for; nil for most.
func (s *slowDeclares) takes(frame []byte) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	const queueDeclare = "\x00\x32\x00\x0a"
	payload := frame[frameHead : len(frame)-1]
	if s.queue == "" || frame[0] != 1 || !bytes.HasPrefix(payload, []byte(queueDeclare)) ||
		!bytes.Contains(payload, []byte(s.queue)) {
		return nil
	}
	s.held++

	return s.gate
}

func (c *slowConn) release(channel uint16, gate <-chan struct{}) {
	<-gate
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.Conn.Write(c.held[channel])
	delete(c.held, channel)
}

// An operator makes the main queue anew, with another type. It is consumed from, and what is wrong
// is told.
func TestRedeclareWithAnotherType(t *testing.T) {
	t.Parallel()
	for was, is := range map[string]string{"classic": "quorum", "quorum": "classic", "quorum ": "stream"} {
		t.Run(is, func(t *testing.T) {
			t.Parallel()
			svc := start(t, setup{QueueType: strings.TrimSpace(was), Handler: byFate})
			svc.publish("ok-before")
			await.Until(t, func() bool { return svc.Calls.count() == 1 }, "it consumes")

			svc.Broker.Do(func(ch *amqp091.Channel) error { // at once, before the service declares it
				if _, err := ch.QueueDelete(svc.Queue, false, false, false); err != nil {
					return err
				}
				_, err := ch.QueueDeclare(svc.Queue, true, false, false, false, amqp091.Table{"x-queue-type": is})

				return err
			})
			svc.publish("once-1")
			if is == "stream" {
				await.Until(t, func() bool { return len(svc.Logs.with("Cannot consume; trying again")) > 1 }, "refused")
				assert.Equal(t, 1, svc.Calls.count())

				return
			}
			await.Until(t, func() bool { return len(svc.Calls.of("once-1")) == 2 }, "it is handled, and retried")
			told := svc.Logs.with("consuming without it")
			require.NotEmpty(t, told)
			conflict := errorAs[*topology.ConflictError](t, told[0].Err)
			assert.Equal(t, []string{svc.Queue, is}, []string{conflict.Name, conflict.Found})
		})
	}
}

// A retry queue that was deleted and cannot be declared again, as the broker does not answer, holds
// up the copies that are to go there, and no others of the same main queue. They go on when the
// answer comes.
func TestRedeclareHoldsUpNoOthers(t *testing.T) {
	t.Parallel()
	var slow slowDeclares
	svc := start(t, setup{Tiers: true,
		Configure: func(c *amqp.Config) { wrapConnections(c, slow.wrap) },
		Delays:    ms(200, 400),
		Handler: func(msg *message.Message) error {
			attempt, _ := retry.AttemptFromContext(msg.Context())
			switch {
			case attempt.Number > 1:
				return nil
			case msg.UUID == "dead":
				return retry.Permanent(errors.New("dead"))
			case msg.UUID == "other":
				return retry.RetryAfter(400*time.Millisecond, errors.New("other"))
			}

			return errors.New("needs what is missing")
		},
	})
	missing := svc.retryQueue(200 * time.Millisecond)
	release := slow.hold(missing)
	defer release()
	svc.Broker.Remove("", missing)

	svc.publish("held-1", "held-2")
	await.Until(t, func() bool { return slow.Held() > 0 }, "the queue is declared again")
	svc.publish("dead", "other")
	await.Until(t, func() bool {
		return svc.deadLettered() == 1 && len(svc.Calls.of("other")) == 2
	}, "the others go on")
	assert.Equal(t, 1, slow.Held(), "one declaration at a time")
	assert.Len(t, svc.Calls.of("held-1"), 1)
	_ = svc.reportedHeld(2)

	release()
	await.Until(t, func() bool {
		return len(svc.Calls.of("held-1")) == 2 && len(svc.Calls.of("held-2")) == 2
	}, "they come back")
	require.Len(t, svc.Events(retry.EventTopologyRepaired), 1)
}
