package tests

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// The zero value of the options is useful and safe.

// program is a service around the first lines of README. Its handler fails.
const program = `package main

import (
	"context"
	"errors"
	"log"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
)

func main() {
	uri := %q
	logger := watermill.NewSlogLogger(slog.Default())
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		log.Fatal(err)
	}
%s
	if err != nil {
		log.Fatal(err)
	}
	router.AddConsumerHandler("ship", %q, subscriber, func(msg *message.Message) error {
		return errors.New("the warehouse does not answer")
	})
	log.Fatal(router.Run(context.Background()))
}
`

// The first lines of README, in a new program with a handler that fails, log what fails.
func TestReadmeLogsWhatFails(t *testing.T) {
	t.Parallel()

	readme := must(os.ReadFile("../README.md"))(t)
	_, after, found := strings.Cut(string(readme), "```go\n")
	require.True(t, found)
	lines, _, found := strings.Cut(after, "```")
	require.True(t, found)

	uri, queue := brokertest.URI(t), uniqueName("readme")
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	require.NoError(t, os.WriteFile(source, fmt.Appendf(nil, program, uri, lines, queue), 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source)
	build.Dir = ".."
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)

	broker := newRabbit(t, uri)
	t.Cleanup(func() { removeService(broker, queue) })
	run := exec.CommandContext(t.Context(), binary)
	stderr := must(run.StderrPipe())(t)
	require.NoError(t, run.Start())
	t.Cleanup(func() { _ = run.Wait() })
	t.Cleanup(func() { _ = run.Process.Kill() })

	await.Until(t, func() bool { return broker.Consumers(queue) == 1 }, "the program consumes")
	broker.Publish(queue, rabbit.Messages("order-1")...)
	logged := make(chan string, 1)
	go func() {
		for s := bufio.NewScanner(stderr); s.Scan(); {
			if strings.Contains(s.Text(), "the warehouse does not answer") {
				logged <- s.Text()
				return
			}
		}
	}()
	line := await.Value(t, logged, "a line of the log with the handler's error")
	for _, part := range []string{"INFO", "Message failed; it will be retried", "order-1", queue, "ship"} {
		assert.Contains(t, line, part)
	}
}

// With watermill-amqp's own config and no option, a held delivery does not stop the queue.
func TestStockConfigLeavesRoomForHeldDeliveries(t *testing.T) {
	t.Parallel()

	network, queue := newProxy(t, brokertest.URI(t)), uniqueName("room")
	network.refuse(forwarder)
	broker := newRabbit(t, network.URI)
	t.Cleanup(func() { removeService(broker, queue) })
	retrier := newRetrier(t, amqp.NewDurableQueueConfig(network.URI), amqpretry.Options{
		Logger: watermill.NopLogger{}, CloseTimeout: time.Second,
	})
	subscriber := must(retrier.NewSubscriber())(t)

	var healthy sync.WaitGroup
	healthy.Add(5)
	router := newRouter(t, watermill.NopLogger{}, retrier.Middleware)
	router.AddConsumerHandler("handler", queue, subscriber, func(msg *message.Message) error {
		if msg.UUID == "fails" {
			return errFate
		}
		healthy.Done()

		return nil
	})
	runRouter(t, router)
	broker.Publish(queue, rabbit.Messages("fails", "ok-1", "ok-2", "ok-3", "ok-4", "ok-5")...)

	await.Closed(t, inBackground(healthy.Wait), "5 healthy messages pass the held one")
}

// removeService removes what a service with default options declares for a topic.
func removeService(broker *rabbit.Client, queue string) {
	queues := []string{queue, queue + ".dlq"}
	for _, delay := range []string{"1s", "5s", "30s", "2m", "10m"} {
		queues = append(queues, queue+".retry."+delay)
	}
	broker.Remove(queue+".retry", queues...)
}
