package tests

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
)

// The tutorial, to the letter, but that "go run ." runs the program that was built before, and
// modules come from this checkout.
func TestGettingStarted_OwnBroker(t *testing.T) {
	t.Parallel()

	broker := brokertest.StartWithManagement(t)
	page := must(os.ReadFile("../docs/getting-started.md"))(t)
	tour := &tutorial{t: t, dir: t.TempDir(), env: append(os.Environ(), "AMQP_URI="+broker.URI,
		"AMQP_MANAGEMENT_URL="+broker.ManagementURL)}
	t.Cleanup(func() { tour.stop() })

	blocks := regexp.MustCompile("(?ms)^```([a-z]+)( service)?\n(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	for _, block := range blocks {
		kind, service, text := block[1], block[2] != "", block[3]
		switch {
		case kind == "go":
			tour.build(text)
		case kind == "console" && service:
			tour.stop()
			tour.serve(strings.TrimPrefix(strings.TrimSpace(text), "$ "))
		case kind == "text" && service:
			await.Until(t, func() bool { return tour.output.String() == text },
				"the service prints\n%s\nand not\n%s", text, &tour.output)
		case kind == "console":
			for _, step := range strings.Split(text, "$ ")[1:] {
				command, wanted, _ := strings.Cut(step, "\n")
				tour.check(command, wanted)
			}
		}
	}
	assert.Equal(t, []string{"WAREHOUSE=closed go run .", "go run . order-1", "amqpretry dlq list orders", "go run .",
		"amqpretry dlq replay orders", "amqpretry dlq replay orders --undo replay.jsonl --yes",
		"amqpretry dlq list orders"}, tour.ran)
}

// without takes the age of a message out of a line, as it is another one in every run.
func without(output string) string {
	return regexp.MustCompile(`  \d+s  +`).ReplaceAllString(output, "  AGE  ")
}

type tutorial struct {
	t       *testing.T
	dir     string
	env     []string
	service *exec.Cmd
	output  output
	log     output
	ran     []string
}

func (r *tutorial) build(source string) {
	r.t.Helper()
	root := must(filepath.Abs(".."))(r.t)
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, "main.go"), []byte(source), 0o600))
	sources := map[string]string{"shop": filepath.Join(r.dir, "main.go"), "amqpretry": "./cmd/amqpretry"}
	for binary, source := range sources {
		build := exec.CommandContext(r.t.Context(), "go", "build", "-o", filepath.Join(r.dir, binary), source)
		build.Dir = root
		output, err := build.CombinedOutput()
		require.NoError(r.t, err, "%s", output)
	}
}

// command is a line of the page as it runs here.
func (r *tutorial) command(line string) *exec.Cmd {
	line = strings.ReplaceAll(line, "go run .", "./shop")
	if strings.HasPrefix(line, "amqpretry ") {
		line = "./" + line
	}
	// exec, so that signals reach the program and not the shell.
	line = regexp.MustCompile(`^((?:[A-Z]+=\w+ )*)`).ReplaceAllString(line, "${1}exec ")
	if at := strings.Index(line, "exec "); at > 0 {
		line = "exec env " + line[:at] + line[at+len("exec "):]
	}
	command := exec.CommandContext(context.WithoutCancel(r.t.Context()), "sh", "-c", line)
	command.Dir, command.Env = r.dir, r.env

	return command
}

// check runs a command and compares what it prints. What only reads is asked again, as a reader is
// slower than a dead letter or its replay.
func (r *tutorial) check(line, wanted string) {
	r.t.Helper()
	printed := r.run(line)
	if strings.Contains(line, "dlq list") {
		await.Until(r.t, func() bool {
			printed = r.run(line)
			return without(printed) == without(wanted)
		}, "$ %s prints\n%s", line, wanted)
	}
	assert.Equal(r.t, without(wanted), without(printed), "$ %s", line)
	r.ran = append(r.ran, line)
}

func (r *tutorial) run(line string) string {
	r.t.Helper()
	command := r.command(line)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	require.NoError(r.t, command.Run(), "$ %s: %s", line, &stderr)
	if strings.HasPrefix(line, "go run") { // its log goes to the standard error
		return stdout.String()
	}

	return stdout.String() + stderr.String()
}

func (r *tutorial) serve(line string) {
	r.t.Helper()
	r.ran = append(r.ran, line)
	r.output.Reset()
	r.log.Reset()
	r.service = r.command(line)
	r.service.Stdout, r.service.Stderr = &r.output, &r.log
	require.NoError(r.t, r.service.Start())
	// as the page says; a message that comes before the queue is lost
	await.Until(r.t, func() bool { return strings.Contains(r.log.String(), " Consuming ") },
		"the log of the service is\n%s", &r.log)
}

func (r *tutorial) stop() {
	if r.service == nil {
		return
	}
	assert.NoError(r.t, r.service.Process.Signal(syscall.SIGINT))
	assert.NoError(r.t, r.service.Wait())
	r.service = nil
}

type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.text.String()
}

func (o *output) Reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Reset()
}

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

func removeService(broker *rabbit.Client, queue string) {
	queues := []string{queue, queue + ".dlq"}
	for _, delay := range []string{"1s", "5s", "30s", "2m", "10m"} {
		queues = append(queues, queue+".retry."+delay)
	}
	broker.Remove(queue+".retry", queues...)
}

// alternative is one way to deal with a message whose handler fails.
type alternative struct {
	name string
	// circulates says that the message goes from one queue to the other and back.
	circulates bool
	// since is the first version of RabbitMQ that has it.
	since [2]int
	// quorum says that only quorum queues have it.
	quorum bool
	// arguments are those that the main queue gets beside its type. Optional.
	arguments amqp091.Table
	// route changes the router, and returns its subscriber; nil: watermill-amqp's own.
	route func(t *testing.T, a *alternativeRun)
}

type alternativeRun struct {
	queue      string
	poison     string // where the way puts what it gives up; empty: nowhere
	conf       amqp.Config
	router     *message.Router
	subscriber message.Subscriber
	logs       *logs
	stop       func() // ends what runs beside the router
}

var alternatives = []alternative{
	{name: "a plain nack"},
	{name: "Watermill's `Retry`: 3 retries, 1 s apart", route: func(_ *testing.T, a *alternativeRun) {
		a.router.AddMiddleware(wmmiddleware.Retry{
			MaxRetries: 3, InitialInterval: time.Second, Multiplier: 1}.Middleware)
	}},
	{name: "Watermill's `PoisonQueue`", route: poisoned},
	{name: "`PoisonQueue` with Watermill's `requeuer`: a delay of 1 s", circulates: true, route: func(t *testing.T, a *alternativeRun) {
		poisoned(t, a)
		subscriber := must(amqp.NewSubscriber(a.conf, a.logs))(t)
		publisher := must(amqp.NewPublisher(a.conf, a.logs))(t)
		requeue := must(requeuer.NewRequeuer(requeuer.Config{Subscriber: subscriber, SubscribeTopic: a.poison,
			Publisher: publisher, Delay: time.Second,
			GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return a.queue, nil },
		}, a.logs))(t)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- requeue.Run(ctx) }()
		a.stop = func() {
			cancel()
			assert.NoError(t, <-ended)
			assert.NoError(t, subscriber.Close())
			assert.NoError(t, publisher.Close())
		}
	}},
	{name: "RabbitMQ's own delayed retry: 1 s", since: [2]int{4, 3}, quorum: true, arguments: delayedRetry},
	{name: "the same, with a marshaler that takes the broker's headers", since: [2]int{4, 3}, quorum: true,
		arguments: delayedRetry, route: func(t *testing.T, a *alternativeRun) {
			policies := config.Policies{Default: config.Policy{Mode: config.ModeOff}}
			a.conf = newRetrier(t, a.conf, amqpretry.Options{Policies: policies, Logger: a.logs}).Config()
		}},
	{name: "**watermill-retry**: 3 retries, 1 s apart", route: func(t *testing.T, a *alternativeRun) {
		options := amqpretry.Options{Policies: retries(ms(1000, 1000, 1000)...), Logger: a.logs}
		retrier := newRetrier(t, a.conf, options)
		plan := must(retrier.Plan(a.queue))(t)
		broker := newRabbit(t, a.conf.Connection.AmqpURI)
		t.Cleanup(func() { broker.RemovePlan(plan) })
		a.router.AddMiddleware(retrier.Middleware)
		a.subscriber = must(retrier.NewSubscriber())(t)
		a.poison = a.queue + ".dlq"
	}},
}

var delayedRetry = amqp091.Table{"x-delayed-retry-type": "all", "x-delayed-retry-min": int64(1000)}

func poisoned(t *testing.T, a *alternativeRun) {
	t.Helper()
	publisher := must(amqp.NewPublisher(a.conf, a.logs))(t)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })
	a.poison = a.queue + ".poison"
	poison := must(wmmiddleware.PoisonQueue(publisher, a.poison))(t)
	a.router.AddMiddleware(poison)
}

// The table of docs/concepts/comparison.md: one message that fails for good comes before five
// healthy ones, and all ways to deal with it are watched for 6 s, or longer on a busy machine.
func TestAlternatives(t *testing.T) {
	t.Parallel()

	text := must(os.ReadFile("../docs/concepts/comparison.md"))(t)
	uri := brokertest.URI(t)
	broker := newRabbit(t, uri)
	for _, queueType := range []string{"classic", "quorum"} {
		for _, a := range alternatives {
			if a.quorum && queueType != "quorum" || !broker.AtLeast(a.since[0], a.since[1]) {
				continue
			}
			queue := queueType
			switch {
			case queueType == "classic":
			case broker.AtLeast(4, 3):
				queue = "quorum, 4.3 and later"
			case broker.AtLeast(4, 0):
				queue = "quorum, 4.0 to 4.2"
			default:
				queue = "quorum, before 4.0"
			}
			t.Run(a.name+", "+queue, func(t *testing.T) {
				t.Parallel()
				row := fmt.Sprintf("| %s | every | ", a.name) // where all queues do the same
				if !strings.Contains(string(text), row) {
					row = fmt.Sprintf("| %s | %s | ", a.name, queue)
				}
				expected := func(begin string) bool { return strings.Contains(string(text), row+begin) }
				row += a.watch(t, uri, queueType, expected) + " |"
				assert.Contains(t, string(text), row, "a row of the page")
			})
		}
	}
}

// watch tells in words what happens to a message that fails and to those behind it. After 6 s it
// goes on for a while if the words are not the expected ones: on a busy machine fewer calls than
// usual find room in 6 s.
func (a alternative) watch(t *testing.T, uri, queueType string, expected func(begin string) bool) string {
	t.Helper()
	run := a.start(t, uri, queueType)
	broker := newRabbit(t, uri)
	var calls calls
	run.router.AddConsumerHandler(uniqueName("handler"), run.queue, run.subscriber, func(msg *message.Message) error {
		calls.add(msg)
		if msg.UUID == "fails" {
			return errors.New("it fails")
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- run.router.Run(context.Background()) }()
	<-run.router.Running()

	began := time.Now()
	healthy := rabbit.Numbered("healthy", 5)
	broker.Publish(run.queue, rabbit.Messages(append([]string{"fails"}, healthy...)...)...)
	<-time.After(time.Until(began.Add(6 * time.Second)))
	told := inWords(calls.All())
	for time.Since(began) < time.Minute && !expected(told+" | ") {
		<-time.After(tick)
		told = inWords(calls.All())
	}
	require.NoError(t, run.router.Close())
	require.NoError(t, <-ended)
	if s, ok := run.subscriber.(*amqp.Subscriber); ok {
		require.NoError(t, s.Close())
	}
	run.stop()

	return told + " | " + run.where(broker, a.circulates)
}

func inWords(calls []call) string {
	failed, before := 0, 0
	handled := map[string]bool{}
	for _, c := range calls {
		if c.ID != "fails" {
			handled[c.ID] = true
			continue
		}
		if failed++; len(handled) == 0 {
			before++
		}
	}

	return timesCalled(failed) + " | " + othersMeanwhile(len(handled), failed > 1 && before == failed)
}

func (a alternative) start(t *testing.T, uri, queueType string) *alternativeRun {
	t.Helper()
	run := &alternativeRun{queue: uniqueName("alternative"), logs: newLogs(t), stop: func() {}}
	run.conf = amqp.NewDurableQueueConfig(uri)
	run.conf.Queue.Arguments = mainQueueArguments(queueType)
	maps.Copy(run.conf.Queue.Arguments, a.arguments)
	broker := newRabbit(t, uri)
	broker.Declare(run.queue, run.conf.Queue.Arguments)
	broker.Declare(run.queue+".poison", run.conf.Queue.Arguments)

	run.router = newRouter(t, run.logs)
	if a.route != nil {
		a.route(t, run)
	}
	if run.subscriber == nil {
		run.subscriber = must(amqp.NewSubscriber(run.conf, run.logs))(t)
	}

	return run
}

func timesCalled(n int) string {
	switch {
	case n == 1:
		return "once"
	case n > 4:
		return "again and again"
	default:
		return fmt.Sprint(n, " times")
	}
}

func othersMeanwhile(handled int, wait bool) string {
	switch {
	case handled == 0:
		return "none is handled"
	case handled < 5:
		return fmt.Sprintf("%d of 5 are handled", handled)
	case wait:
		return "wait for its retries"
	default:
		return "go on"
	}
}

func (a *alternativeRun) where(broker *rabbit.Client, circulates bool) string {
	has := func(queue string) bool {
		return queue != "" && slices.ContainsFunc(broker.Drain(queue), func(d amqp091.Delivery) bool {
			return rabbit.UUID(d) == "fails"
		})
	}
	for range 20 {
		switch inMain := has(a.queue); {
		case circulates && (inMain || has(a.poison)):
			return "on its way round"
		case inMain:
			return "in the main queue"
		case has(a.poison):
			return "in " + strings.Replace(strings.TrimPrefix(a.poison, a.queue), ".", "`Q.", 1) + "`"
		}
		<-time.After(300 * time.Millisecond)
	}

	return "**lost**"
}
