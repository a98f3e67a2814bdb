//go:build cluster

package cluster

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/publishtest"
)

// startRetrierPublisher publishes with the publisher of a service, several messages at a time. What
// that says of each message goes into the ledger.
func startRetrierPublisher(t *testing.T, s *service, queues []string, seed uint64, l *ledger) (stop func()) {
	t.Helper()
	pub, err := s.retrier.NewPublisher()
	require.NoError(t, err)
	ctx, halt := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i, name := range []string{"own-0", "own-1"} {
		next := &publisher{name: name, queues: queues, random: rand.New(rand.NewPCG(seed, uint64(100+i)))}
		running.Go(func() {
			for ctx.Err() == nil {
				id, queue := next.next()
				batch := []*message.Message{message.NewMessage(id, nil)}
				for range next.random.IntN(10) {
					id, _ := next.next()
					batch = append(batch, message.NewMessage(id, nil))
				}
				for _, msg := range batch {
					l.publishes(msg.UUID)
				}
				l.isTold(batch, pub.Publish(queue, batch...))

				select {
				case <-time.After(250 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		halt()
		running.Wait()
	})
	t.Cleanup(stop)

	return stop
}

// isTold keeps what a publisher says of a batch.
func (l *ledger) isTold(batch []*message.Message, err error) {
	for id, outcome := range publishtest.Outcomes(batch, err) {
		switch outcome {
		case publishtest.Stored:
			l.isAccepted(id)
		case publishtest.NotStored:
			l.isRefused(id, err)
		case publishtest.MayBeStored:
		}
	}
}
