package browser

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/deadletter"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/retry"
)

// cause is why some messages of a shop died, the first of them so long ago, and the others each a
// while later.
type cause struct {
	first, messages  int
	queue, handler   string
	reason           retry.Reason
	error, errorType string
	ago, every       time.Duration
	calls            int
}

// longQueue has a name that no column has room for.
const longQueue = "warehouse.eu-central-1.stock-reservations.v2"

var causes = []cause{
	{1042, 31, "orders", "ship", retry.ReasonExhausted, "dial tcp 10.0.0.7:443: connection refused", "*net.OpError",
		55 * time.Minute, 100 * time.Second, 4},
	{918, 12, "orders", "charge", retry.ReasonPermanent, "card of customer %d declined: insufficient funds",
		"*bank.DeclinedError", 60 * time.Hour, 290 * time.Minute, 1},
	{902, 4, "orders", "ship", retry.ReasonPermanent, "no address: unexpected end of JSON input", "*json.SyntaxError",
		5 * time.Hour, 30 * time.Minute, 1},
	{871, 2, "orders", "charge", retry.ReasonPanic, "panic: a negative total", "*retry.PanicError",
		6 * 24 * time.Hour, 40 * time.Hour, 4},
	{205, 9, "invoices", "print", retry.ReasonExhausted, "the printer does not answer", "*errors.errorString",
		3 * time.Hour, 17 * time.Minute, 4},
	{7701, 2870, "mails", "send", retry.ReasonExhausted, "421 too many connections from 10.0.0.9", "*textproto.Error",
		5 * time.Hour, 6 * time.Second, 4},
	{3001, 340, "mails", "send", retry.ReasonPermanent, "550 mailbox of customer %d does not exist",
		"*textproto.Error", 30 * time.Hour, 5 * time.Minute, 1},
	{501, 618, "payments", "capture", retry.ReasonExhausted,
		"capture of payment %d: POST https://api.bank.example/v3/captures: 503 Service Unavailable: upstream connect " +
			"error or disconnect/reset before headers, reset reason: connection timeout, transport failure reason: " +
			"delayed connect error: 111", "*bank.GatewayError", 9 * time.Hour, 50 * time.Second, 4},
	{4401, 23, "payments", "refund", retry.ReasonPermanent, "refund of payment %d exceeds what was captured",
		"*payments.AmountError", 26 * time.Hour, time.Hour, 1},
	{61, 17, "refunds", "refund", retry.ReasonExhausted, "context deadline exceeded", "context.deadlineExceededError",
		20 * time.Hour, time.Hour, 4},
	{88, 6, "legacy-imports", "convert", retry.ReasonPermanent, "line %d: 14 fields, but the header has 15",
		"*csv.ParseError", 40 * 24 * time.Hour, 24 * time.Hour, 1},
	{9001, 154, longQueue, "reserve", retry.ReasonExhausted, "reserve SKU %d: ERROR: could not serialize access due " +
		"to concurrent update (SQLSTATE 40001)",
		"*fmt.wrapError[" + strings.Repeat("github.com/shop/stocks.", 220) + "]",
		8 * 24 * time.Hour, time.Hour, 4},
}

// waiting is how many messages wait for a retry.
var waiting = map[string]int{"orders.retry.10m": 42, "orders.retry.1h": 18, "orders.retry.6h": 5, "mails.retry.10m": 23,
	"mails.retry.1h": 64, "invoices.retry.10m": 2, "payments.retry.10m": 1204, "payments.retry.6h": 87}

// newShop starts the services of a shop on a broker of its own, with dead letters and waiting
// messages that are the same in each run, and a console that knows the management API.
func newShop(t *testing.T) *world {
	t.Helper()
	broker := brokertest.StartWithManagement(t)
	w := &world{Client: rabbit.New(t, broker.URI), t: t, queue: "orders",
		others:     []string{"invoices", "mails", "payments", "search-index", longQueue},
		management: broker.ManagementURL,
		policy:     config.Policy{Delays: []time.Duration{10 * time.Minute, time.Hour, 6 * time.Hour}}}
	w.serve()
	w.fill()
	w.server = w.console("/dead-letters")
	w.shows(49)

	return w
}

// fill publishes the messages of a shop. Nothing consumes its queue refunds, and the main queue
// legacy-imports is gone.
func (w *world) fill() {
	w.t.Helper()
	for _, main := range []string{"refunds", "legacy-imports"} {
		dead, arguments := deadletter.Queue(w.t, main)
		w.Declare(dead, arguments)
	}
	w.Declare("refunds", amqp091.Table{amqp091.QueueTypeArg: "quorum"})
	w.Publish("refunds", rabbit.Messages(rabbit.Numbered("refund", 12)...)...)
	now := time.Now()
	for _, c := range causes {
		var messages []amqp091.Publishing
		for i := range c.messages {
			messages = append(messages, c.message(w, c.first+i, now.Add(-c.ago+time.Duration(i)*c.every)))
		}
		w.Publish(c.queue+".dlq", messages...)
	}
	for queue, n := range waiting {
		w.Publish(queue, rabbit.Messages(rabbit.Numbered(queue, n)...)...)
	}
}

// shows waits until the console has that number of dead orders, and what waits.
func (w *world) shows(orders int) {
	w.t.Helper()
	await.Until(w.t, func() bool {
		page := w.page("queue?queue=orders.dlq")
		for queue, n := range map[string]int{"orders": 0, "wait 10m": 42, "wait 1h": 18, "wait 6h": 5,
			"orders.dlq": orders} {
			if !strings.Contains(page, fmt.Sprintf("<dt>%s</dt><dd>%d</dd>", queue, n)) {
				return false
			}
		}
		return true
	}, "the console shows %d dead orders, and what waits", orders)
}

// message is a dead letter.
func (c cause) message(w *world, number int, died time.Time) amqp091.Publishing {
	state := deadletter.State(c.queue, 0)
	state.Handler, state.Reason, state.ErrorType, state.Attempts = c.handler, c.reason, c.errorType, c.calls
	state.Error = c.error
	if strings.Contains(c.error, "%d") {
		state.Error = fmt.Sprintf(c.error, 17*number)
	}
	state.Host, state.LastFailure, state.History = "shop-1", died, nil
	for n, at := c.calls, died; n > 0; n-- {
		call := retry.FailedCall{Number: n, At: at, Error: state.Error, Type: c.errorType}
		state.History = append([]retry.FailedCall{call}, state.History...)
		if n > 1 {
			at = at.Add(-w.policy.Delays[n-2])
		}
	}
	state.FirstFailure = state.History[0].At
	id := fmt.Sprintf("%s-%d", strings.TrimSuffix(c.queue, "s"), number)
	body := fmt.Sprintf(`{"id":%q,"customer":%d,"items":[{"sku":"A%d","n":2}]}`, id, 17*number, number%9)

	return deadletter.Message(state, id, body)
}

// page returns a page of the console.
func (w *world) page(path string) string {
	w.t.Helper()
	response, err := http.Get(w.at(path))
	require.NoError(w.t, err)
	defer func() { _ = response.Body.Close() }()
	page, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)

	return string(page)
}
