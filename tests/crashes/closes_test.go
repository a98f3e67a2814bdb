package crashes

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/internal/versions/adapter"
)

// closing is a combination of services that are closed and started again while they work.
type closing struct {
	queueType         string
	workers, prefetch int  // a prefetch of 0 follows the handlers
	slow              bool // a first message is in its handler all the time: all others are acknowledged one by one
}

func (c closing) String() string {
	name := fmt.Sprintf("%s, %d workers, prefetch %s", c.queueType, c.workers, prefetched(c.prefetch))
	if c.slow {
		name += ", behind a slow message"
	}

	return name
}

func closings() []closing {
	if os.Getenv("CRASHES") == "" {
		return []closing{
			{"quorum", 1, 0, false}, {"quorum", 1, 200, true}, {"classic", 1, 50, false},
		}
	}
	var all []closing
	for _, queueType := range []string{"quorum", "classic"} {
		for _, workers := range []int{1, 4} {
			for _, prefetch := range []int{0, 1, 10, 50, 200, 1000} {
				for _, slow := range []bool{false, true} {
					all = append(all, closing{queueType, workers, prefetch, slow})
				}
			}
		}
	}

	return all
}

func prefetched(prefetch int) string {
	if prefetch == 0 {
		return "adaptive"
	}

	return strconv.Itoa(prefetch)
}

const closes = 10 // of each worker

// No message is handled again whose handler has succeeded before a close.
func TestClosesLoseNoAcknowledgement(t *testing.T) {
	sideBySide(t)
	version := dial(t).Version()
	table := report.Table{Head: []string{"RabbitMQ " + version + ": services", "closes", "handled", "handled twice",
		"counted by the broker", "longest close"}}
	for _, c := range closings() {
		t.Run(c.String(), func(t *testing.T) {
			handled, counted, longest := c.play(t)
			twice := 0
			for _, n := range handled {
				twice += n - 1
			}
			assert.Zero(t, twice, "messages that were handled again after a success")
			if version >= "4.3" {
				assert.Zero(t, counted, "messages that a close has left to the broker")
			}
			table.Add(c, c.workers*closes, len(handled), twice, counted, longest.Round(10*time.Millisecond))
		})
	}
	report.Write(t, table.String())
}

func (c closing) play(t *testing.T) (handled map[string]int, counted int, longest time.Duration) {
	t.Helper()
	b := dial(t)
	s := service{URI: brokertest.URI(t), Queues: queuesFor(1), QueueType: c.queueType,
		Concurrency: cmp.Or(min(4, c.prefetch), 4), Prefetch: c.prefetch}
	b.declare(s)
	handled = map[string]int{}
	var (
		mu   sync.Mutex
		left = 400 + c.workers*closes*40
		all  sync.WaitGroup
	)
	b.publish(s.Queues[0], rabbit.Numbered("message", left)...)

	for range c.workers {
		all.Go(func() {
			for i := range closes {
				began := make(chan struct{}) // to close: the slow message ends with it
				once := &sync.Once{}
				svc := begin(t, s, func(msg *message.Message) error {
					slow := false
					if c.slow {
						once.Do(func() { slow = true })
					}
					if slow {
						<-began
					} else {
						<-time.After(2 * time.Millisecond)
					}
					mu.Lock()
					defer mu.Unlock()
					handled[msg.UUID]++

					return nil
				})
				<-time.After(time.Duration(60+7*i) * time.Millisecond)
				end := time.Now()
				time.AfterFunc(time.Duration(i%3)*100*time.Millisecond, func() { close(began) })
				svc.close()
				mu.Lock()
				longest = max(longest, time.Since(end))
				mu.Unlock()
			}
		})
	}
	all.Wait()

	rest := b.rest(s.Queues[0], func(id string) bool { return handled[id] == 0 }, left-len(handled))
	for id, n := range rest {
		if handled[id] > 0 {
			handled[id]++ // whoever takes it next handles it again
		}
		if n > 0 {
			counted++
		}
	}

	return handled, counted, longest
}

// inProcess is a service in the process of the test.
type inProcess struct {
	t       *testing.T
	retrier *adapter.Retrier
	router  *message.Router
}

func begin(t *testing.T, s service, handler message.NoPublishHandlerFunc) *inProcess {
	retrier, router, err := s.router(message.RouterConfig{CloseTimeout: 5 * time.Minute}, handler)
	if !assert.NoError(t, err) {
		return nil
	}
	go func() { assert.NoError(t, router.Run(context.Background())) }()
	<-router.Running()

	return &inProcess{t, retrier, router}
}

func (s *inProcess) close() {
	assert.NoError(s.t, s.router.Close())
	assert.NoError(s.t, s.retrier.Close())
}
