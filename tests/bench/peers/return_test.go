package peers

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

// benchmarkReturn measures how many messages per second fail, wait, come back and succeed.
func benchmarkReturn(b *testing.B, peers []peer, notes []string) {
	uri := brokertest.URI(b)
	messages := report.Scaled(b, 10000, 500)
	t := report.Table{
		Title: "Peers: fail, wait, return",
		Notes: append([]string{
			fmt.Sprintf("%d messages lie in the main queue. Each fails once, waits %s on the broker, comes back and "+
				"succeeds. Messages per second from the first call of the handler to the last success, less the %s "+
				"that each of them waits. Prefetch %d; a handler that does nothing, one call at a time.", messages,
				wait, wait, prefetch),
			"The retrier publishes a failed message to the retry queue, and acks it when that is confirmed. So does " +
				"rascal, " + strconv.Itoa(channels) +
				" at a time, as its example has it. With go-rabbitmq it is nacked, and the broker moves it, from a " +
				"quorum queue to another at least once. Quorum retry queues are the same for all: at-least-once and " +
				"reject-publish, which the retrier sets by itself.",
		}, notes...),
		Head: []string{"main queue", "retry queue", "client", "to the retrier", "msg/s"},
	}
	for _, queueType := range []string{classic, quorum} {
		b.Run(queueType, func(b *testing.B) {
			var contenders []report.Contender
			for _, retryType := range []string{quorum, classic} {
				for _, p := range peers {
					contenders = append(contenders, report.Contender{entry(p, retryType),
						func(b *testing.B) figures {
							return returned(b, uri, p, newQueue(queueType, retryType), messages)
						}})
				}
			}
			all := report.Compare(b, contenders...)
			for _, retryType := range []string{quorum, classic} {
				for _, p := range peers {
					name := entry(p, retryType)
					t.Add(queueType, retryType, p, all.Ratio(name, entry(retrier{}, retryType), unit),
						all.Median(name, unit))
				}
			}
		})
	}
	t.WriteOn(b, uri)
}

func entry(p peer, retryType string) string { return fmt.Sprintf("%s, retry queue %s", p, retryType) }

// returned lets a peer do it once: messages per second.
func returned(b *testing.B, uri string, p peer, q queue, messages int) figures {
	q.fill(b, uri, p.arguments(q), messages)
	defer q.remove(b, uri, p.beside(q))
	c := newCalls(messages)
	stop := p.start(b, uri, q, c)
	defer stop()
	defer c.begin() // or it could not stop
	await.Closed(b, c.there, fmt.Sprintf("%s gets no message", p))

	began := time.Now()
	c.begin()
	await.Closed(b, c.done, fmt.Sprintf("%s: not every message has succeeded", p))
	took := time.Since(began) - wait
	require.Positive(b, took, "%s: messages did not wait", p)

	return rate(messages, took)
}
