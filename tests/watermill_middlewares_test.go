package tests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	wmmetrics "github.com/ThreeDotsLabs/watermill/components/metrics"
	"github.com/ThreeDotsLabs/watermill/message"
	wmmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/rabbitmq/amqp091-go"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/middleware"
	"github.com/amqpretry/watermill-retry/retry"
)

// watermills is a middleware of Watermill and a handler: a row of
// docs/how-to/use-watermill-parts.md.
type watermills struct {
	name string
	// handler says what the handler does, in the words of the page; empty: it fails.
	handler string
	handle  func(p *play, msg *message.Message) ([]*message.Message, error)
	// middleware makes the middleware, and further ones right inside of it. nil: there is none, on
	// neither side.
	middleware func(t *testing.T, p *play) chained
	// random makes the middleware, which fails messages with this probability. A message for which
	// it is 0 comes first.
	random func(probability float32) message.HandlerMiddleware
	// also says what else there is to see after the message has ended. Optional.
	also func(p *play) string
}

type chained = []message.HandlerMiddleware

const (
	played  = "message" // the UUID of the message that is followed
	passes  = "passes"
	endless = 40 // from so many arrivals on, a message comes again and again
)

var errPlayed = errors.New("it fails")

// playedPolicy is what all rows have: 3 attempts, the first with 2 calls.
var playedPolicy = config.Policies{Default: config.Policy{Delays: ms(50, 50), Immediate: 1}}

func fails(*play, *message.Message) ([]*message.Message, error) { return nil, errPlayed }

func failsLate(*play, *message.Message) ([]*message.Message, error) {
	<-time.After(50 * time.Millisecond) // long enough for the acknowledgement of a stock subscriber
	return nil, errPlayed
}

func failsSecond(p *play, _ *message.Message) ([]*message.Message, error) {
	if p.svc.Calls.count()%2 == 0 {
		return nil, errPlayed
	}

	return nil, nil
}

func failsOnce(p *play, _ *message.Message) ([]*message.Message, error) {
	if len(p.svc.Calls.of(played)) == 1 {
		return nil, errPlayed
	}

	return []*message.Message{message.NewMessage("output", []byte("output"))}, nil
}

func panicsEach(*play, *message.Message) ([]*message.Message, error) { panic("it panics") }

func waitsForItsEnd(p *play, msg *message.Message) ([]*message.Message, error) {
	if msg.Context().Err() != nil {
		p.late.Add(1)
	}
	<-msg.Context().Done()
	return nil, msg.Context().Err()
}

func failsForGood(*play, *message.Message) ([]*message.Message, error) {
	return nil, retry.Permanent(errPlayed)
}

func works(*play, *message.Message) ([]*message.Message, error) { return nil, nil }

func given(m ...message.HandlerMiddleware) func(*testing.T, *play) chained {
	return func(*testing.T, *play) chained { return m }
}

var watermillRetry = wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, Multiplier: 1}

var watermillsMiddlewares = []watermills{
	{name: "none"},
	{name: "`Retry`, 2 retries", middleware: given(watermillRetry.Middleware)},
	{name: "`Retry`, 2 retries", handler: "fails, `Permanent`", handle: failsForGood,
		middleware: given(watermillRetry.Middleware)},
	{name: "`Retry` with the `ShouldRetry` below", handler: "fails, `Permanent`", handle: failsForGood,
		middleware: given(wmmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, Multiplier: 1,
			ShouldRetry: func(p wmmiddleware.RetryParams) bool {
				return !errors.Is(p.Err, retry.ErrPermanent) && !errors.Is(p.Err, retry.ErrDrop) &&
					!errors.Is(p.Err, retry.ErrPostponed)
			}}.Middleware)},
	{name: "`Timeout`, 100 ms", handler: "waits for the end of its context", handle: waitsForItsEnd,
		middleware: given(wmmiddleware.Timeout(100 * time.Millisecond)), also: func(p *play) string {
			return fmt.Sprintf("%s with an ended context", several(int(p.late.Load()), "call"))
		}},
	{name: "`Throttle`", middleware: func(_ *testing.T, p *play) chained {
		return chained{wmmiddleware.NewThrottle(100, time.Second).Middleware, p.counting(&p.turns)}
	}, also: func(p *play) string { return several(int(p.turns.Load()), "turn") }},
	{name: "`Recoverer`", handler: "panics", handle: panicsEach, middleware: given(wmmiddleware.Recoverer),
		also: func(p *play) string {
			if strings.Contains(p.letter(header.Error), "goroutine ") {
				return "stack in the error text"
			}

			return "no stack in the error text"
		}},
	{name: "`PoisonQueue`", middleware: func(t *testing.T, p *play) chained {
		m := must(wmmiddleware.PoisonQueue(p.publisher(t), p.poison()))(t)

		return chained{m}
	}},
	{name: "`PoisonQueueWithFilter`, for other errors",
		middleware: func(t *testing.T, p *play) chained {
			m := must(wmmiddleware.PoisonQueueWithFilter(p.publisher(t), p.poison(),
				func(err error) bool { return !errors.Is(err, errPlayed) }))(t)

			return chained{m}
		}},
	{name: "`InstantAck`, 50 ms before the next one", handler: "fails after 50 ms", handle: failsLate,
		middleware: given(wmmiddleware.InstantAck, func(h message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				<-time.After(50 * time.Millisecond) // long enough for the acknowledgement
				return h(msg)
			}
		})},
	{name: "`Duplicator`", middleware: given(wmmiddleware.Duplicator)},
	{name: "`Duplicator`", handler: "fails each second call", handle: failsSecond,
		middleware: given(wmmiddleware.Duplicator)},
	{name: "`CorrelationID`", handler: "fails once", handle: failsOnce,
		middleware: given(wmmiddleware.CorrelationID), also: func(p *play) string {
			return fmt.Sprintf("output with id %q", p.outputs.ids())
		}},
	{name: "`IgnoreErrors`, for this error",
		middleware: given(wmmiddleware.NewIgnoreErrors([]error{errPlayed}).Middleware)},
	{name: "`DelayOnError`, 1 h", also: func(p *play) string {
		if p.letter("_watermill_delayed_for") == "" {
			return "no delay metadata"
		}

		return "delay metadata"
	}, middleware: given((&wmmiddleware.DelayOnError{InitialInterval: time.Hour, MaxInterval: time.Hour,
		Multiplier: 1}).Middleware)},
	{name: "`RandomFail(1)`", handler: "works", handle: works, random: wmmiddleware.RandomFail},
	{name: "`RandomPanic(1)`", handler: "works", handle: works, random: wmmiddleware.RandomPanic},
	{name: "`CircuitBreaker`, opens after 1 failure",
		middleware: func(*testing.T, *play) chained {
			return chained{wmmiddleware.NewCircuitBreaker(gobreaker.Settings{ReadyToTrip: func(
				c gobreaker.Counts,
			) bool {
				return c.ConsecutiveFailures >= 1
			}}).Middleware}
		}},
	{name: "`Deduplicator`", handler: "fails twice", middleware: func(*testing.T, *play) chained {
		return chained{watermillsDeduplicator()}
	}, handle: func(p *play, _ *message.Message) ([]*message.Message, error) {
		if len(p.svc.Calls.of(played)) <= 2 {
			return nil, errPlayed
		}

		return nil, nil
	}},
	{name: "components/metrics", middleware: func(_ *testing.T, p *play) chained {
		p.registry = prometheus.NewRegistry()
		return chained{wmmetrics.NewPrometheusMetricsBuilder(p.registry, "", "").NewRouterMiddleware().Middleware}
	}, also: func(p *play) string {
		successes, failures := p.histogram()
		return fmt.Sprintf("histogram: %s, %s", several(successes, "success"), several(failures, "failure"))
	}},
}

// Plays one message with each of Watermill's middlewares inside and outside of the retry
// middleware, on both subscribers, and compares what was seen with the page.
func TestWatermillsMiddlewares(t *testing.T) {
	t.Parallel()

	text := must(os.ReadFile("../docs/how-to/use-watermill-parts.md"))(t)
	uri := brokertest.URI(t)
	var cells sync.Map // by place
	t.Run("plays", func(t *testing.T) {
		for _, w := range watermillsMiddlewares {
			for _, at := range w.places() {
				t.Run(fmt.Sprintf("%s, %s, %+v", w.name, w.does(), at), func(t *testing.T) {
					t.Parallel()
					cells.Store(at, w.cell(t, uri, at))
				})
			}
		}
	})
	if t.Failed() {
		return
	}

	var rows []string
	for _, w := range watermillsMiddlewares {
		row := func(stock bool) string {
			var row strings.Builder
			for _, outside := range []bool{false, true} {
				cell, played := cells.Load(place{w.name, w.does(), stock, outside})
				if !played { // no middleware has no sides
					cell = "as outside"
				}
				fmt.Fprintf(&row, " %s |", cell)
			}

			return row.String()
		}
		own, stock := row(false), row(true)
		rows = append(rows, fmt.Sprintf("| %s | %s |%s", w.name, w.does(), own))
		if stock != strings.ReplaceAll(own, refusedStops, refused) { // a stock subscriber cannot be stopped
			rows = append(rows, fmt.Sprintf("| %s, on a stock subscriber | %s |%s", w.name, w.does(), stock))
		}
	}
	var page []string // without the advice in the last column
	for line := range strings.Lines(string(text)) {
		if columns := strings.SplitAfterN(line, "|", 6); len(columns) == 6 {
			page = append(page, strings.Join(columns[:5], ""))
		}
	}
	require.Greater(t, len(page), 2)
	assert.Equal(t, strings.Join(rows, "\n"), strings.Join(page[2:], "\n"), "the rows of the page, behind its head")
}

const (
	refused      = "**refused**; else "
	refusedStops = "**refused**, stops; else "
)

type place struct {
	name, handler  string
	stock, outside bool
}

func (w watermills) places() (all []place) {
	for _, stock := range []bool{false, true} {
		all = append(all, place{w.name, w.does(), stock, true})
		if w.middleware != nil || w.random != nil {
			all = append(all, place{w.name, w.does(), stock, false})
		}
	}

	return all
}

func (w watermills) does() string {
	if w.handler == "" {
		return "fails"
	}

	return w.handler
}

func (w watermills) cell(t *testing.T, uri string, at place) string {
	t.Helper()
	p := w.start(t, uri, at, middleware.OrderEnforce)
	isRefused := p.svc.Retrier.CheckRouter(p.checked) != nil
	told := p.watch()
	switch {
	case p.stopped: // the message is in its queue, and nothing else has happened to it
		return refusedStops + w.start(t, uri, at, middleware.OrderLog).watch()
	case isRefused:
		return refused + told
	}

	return told
}

// play is a service with a middleware of Watermill on one side of the retry middleware, and one
// message.
type play struct {
	t        *testing.T
	w        watermills
	svc      *service
	arrivals atomic.Int32 // of the message at the router
	inHand   atomic.Int32 // calls of counting middlewares that have not returned
	outputs  *outputs
	turns    atomic.Int32 // that Throttle has given
	late     atomic.Int32 // calls whose context had ended
	letters  []amqp091.Delivery
	registry *prometheus.Registry
	checked  *message.Router // the same for CheckRouter, which knows middlewares by their names
	stopped  bool            // the subscription has stopped by itself
}

func (p *play) poison() string { return p.svc.Queue + ".poison" }

func (w watermills) start(t *testing.T, uri string, at place, mode middleware.OrderMode) *play {
	t.Helper()
	p := &play{t: t, w: w, outputs: &outputs{}}
	p.svc = newService(t, setup{URI: uri, Options: amqpretry.Options{Policies: playedPolicy, MiddlewareOrder: mode}})
	p.svc.Broker.Declare(p.poison(), mainQueueArguments("classic"))
	t.Cleanup(func() { p.svc.Broker.Remove("", p.poison()) })

	ours, played, named := p.svc.Retrier.Middleware, chained{}, chained{}
	switch {
	case w.random != nil:
		played, named = chained{passing(w.random)}, chained{w.random(1)}
	case w.middleware != nil:
		played = w.middleware(t, p)
		named = played
	}
	var subscriber message.Subscriber = p.svc.Sub
	if at.stock {
		subscriber = stockOf(t, p.svc.Retrier.Config())
	}
	route := func(theirs chained) *message.Router {
		all := append(chained{ours}, theirs...)
		if at.outside {
			all = append(slices.Clone(theirs), ours)
		}
		bare(t, p.svc, append(chained{p.counting(&p.arrivals)}, all...)...)
		p.svc.Router.AddHandler("handler", p.svc.Queue, subscriber, "outputs", p.outputs, p.handle)

		return p.svc.Router
	}
	p.checked = route(named)
	route(played)

	return p
}

func (p *play) handle(msg *message.Message) ([]*message.Message, error) {
	if msg.UUID == passes {
		return nil, nil
	}
	p.svc.Calls.add(msg)
	if p.w.handle == nil {
		return fails(p, msg)
	}

	return p.w.handle(p, msg)
}

func passing(random func(float32) message.HandlerMiddleware) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		never, each := random(-1)(h), random(1)(h)

		return func(msg *message.Message) ([]*message.Message, error) {
			if msg.UUID == passes {
				return never(msg)
			}

			return each(msg)
		}
	}
}

func (p *play) counting(n *atomic.Int32) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if msg.UUID == played {
				n.Add(1)
			}
			p.inHand.Add(1)
			defer p.inHand.Add(-1)

			return h(msg)
		}
	}
}

func (p *play) waits() bool { return len(p.svc.Events(retry.EventRetried)) >= int(p.arrivals.Load()) }

func (p *play) watch() string {
	p.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- p.svc.Router.Run(context.Background()) }()
	<-p.svc.Router.Running()
	if p.w.random != nil {
		p.svc.publish(passes)
		await.Until(p.t, func() bool {
			return len(p.svc.Events(retry.EventSucceeded)) == 1 || len(ended) > 0
		}, "it passes")
	}
	m := rabbit.Message(played, played)
	m.Headers[wmmiddleware.CorrelationIDMetadataKey] = "c"
	p.svc.Broker.Publish(p.svc.Queue, m)
	await.Until(p.t, func() bool { return p.arrivals.Load() > 0 || len(ended) > 0 }, "it arrives")

	// Half a second in which nothing happens. It is counted in looks: while the process stands
	// still, nothing happens either.
	seen, quiet := -1, 0
	await.Until(p.t, func() bool {
		quiet++
		if n := int(p.arrivals.Load()) + p.svc.Calls.count() + len(p.svc.Events()); n != seen {
			seen, quiet = n, 0
		}

		return p.arrivals.Load() >= endless ||
			quiet > 25 && p.inHand.Load() == 0 && (len(ended) > 0 || !p.waits())
	}, "nothing happens any more")
	select {
	case err := <-ended:
		p.stopped = true
		require.NoError(p.t, err)
	default:
		require.NoError(p.t, p.svc.Router.Close())
		require.NoError(p.t, <-ended)
	}
	require.NoError(p.t, p.svc.Retrier.Close())

	return p.told()
}

func (p *play) told() string {
	p.t.Helper()
	attempts := map[int]bool{}
	for _, e := range p.svc.Events(retry.EventCall) {
		if e.Message.UUID == played {
			attempts[e.Attempt.Number] = true
		}
	}
	words := []string{fmt.Sprintf("%s in %s", several(p.svc.Calls.count(), "call"), several(len(attempts), "attempt"))}
	if p.arrivals.Load() >= endless {
		words[0] = "redelivered at once, again and again"
	}
	words = append(words, p.where())
	if p.w.also != nil {
		words = append(words, p.w.also(p))
	}

	return strings.Join(words, "; ")
}

func several(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}

	if strings.HasSuffix(what, "s") {
		what += "e"
	}

	return fmt.Sprint(n, " ", what, "s")
}

func (p *play) where() string {
	p.t.Helper()
	is := func(ds []amqp091.Delivery) []amqp091.Delivery {
		return slices.DeleteFunc(ds, func(d amqp091.Delivery) bool { return rabbit.UUID(d) != played })
	}
	var found []string
	p.letters = is(p.svc.Broker.Drain(p.svc.dlq()))
	reasons := map[string]bool{}
	for _, d := range p.letters {
		reasons["`"+rabbit.Text(d, header.Reason)+"`"] = true
	}
	if n := len(p.letters); n > 0 {
		require.Len(p.t, reasons, 1)
		for reason := range reasons {
			found = append(found, several(n, "dead letter")+", "+reason)
		}
	}
	plan := must(p.svc.Retrier.Plan(p.svc.Queue))(p.t)
	for _, q := range plan.Queues {
		if q.Name != p.svc.dlq() && len(is(p.svc.Broker.Drain(q.Name))) > 0 {
			found = append(found, "in a retry queue")
		}
	}
	if len(is(p.svc.Broker.Drain(p.svc.Queue))) > 0 {
		found = append(found, "in the main queue")
	}
	if len(is(p.svc.Broker.Drain(p.poison()))) > 0 {
		found = append(found, "in the poison queue")
	}
	if len(found) > 0 {
		return strings.Join(found, " and ")
	}
	if slices.ContainsFunc(p.svc.Events(retry.EventSucceeded), func(e retry.Event) bool {
		return e.Message.UUID == played
	}) {
		return "acknowledged as a success"
	}

	return "**lost**"
}

func (p *play) letter(key string) string {
	if len(p.letters) == 0 {
		return ""
	}

	return rabbit.Text(p.letters[0], key)
}

func (p *play) histogram() (successes, failures int) {
	p.t.Helper()
	families := must(p.registry.Gather())(p.t)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
				return l.GetName() == "success" && l.GetValue() == "true"
			}) {
				successes += int(m.GetHistogram().GetSampleCount())
			} else {
				failures += int(m.GetHistogram().GetSampleCount())
			}
		}
	}

	return successes, failures
}

func (p *play) publisher(t *testing.T) message.Publisher {
	t.Helper()
	publisher := must(amqp.NewPublisher(amqp.NewDurableQueueConfig(p.svc.Broker.URI), p.svc.Logs))(t)
	t.Cleanup(func() { assert.NoError(t, publisher.Close()) })

	return publisher
}

type outputs struct{ records[*message.Message] }

func (o *outputs) Publish(_ string, messages ...*message.Message) error {
	o.put(messages...)
	return nil
}

func (*outputs) Close() error { return nil }

func (o *outputs) ids() string {
	var ids []string
	for _, msg := range o.All() {
		ids = append(ids, wmmiddleware.MessageCorrelationID(msg))
	}

	return strings.Join(ids, ",")
}
