package browser

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

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
	{7701, 128, "mails", "send", retry.ReasonExhausted, "421 too many connections from 10.0.0.9", "*textproto.Error",
		2 * time.Hour, 50 * time.Second, 4},
}

// waiting is how many messages wait for a retry.
var waiting = map[string]int{"orders.retry.10m": 42, "orders.retry.1h": 18, "orders.retry.6h": 5, "mails.retry.10m": 23,
	"mails.retry.1h": 64, "invoices.retry.10m": 2}

// newShop starts the services of a shop on a broker of its own, with dead letters and waiting
// messages that are the same in each run, and a console that knows the management API.
func newShop(t *testing.T) *world {
	t.Helper()
	broker := brokertest.StartWithManagement(t)
	w := &world{Client: rabbit.New(t, broker.URI), t: t, queue: "orders", others: []string{"invoices", "mails"},
		management: broker.ManagementURL,
		policy:     config.Policy{Delays: []time.Duration{10 * time.Minute, time.Hour, 6 * time.Hour}}}
	w.serve()
	now := time.Now()
	for _, c := range causes {
		for i := range c.messages {
			c.publish(w, c.first+i, now.Add(-c.ago+time.Duration(i)*c.every))
		}
	}
	for queue, n := range waiting {
		w.Publish(queue, rabbit.Messages(rabbit.Numbered(queue, n)...)...)
	}
	w.server = w.console("/dead-letters")
	w.shows(49)

	return w
}

// shows waits until the overview has that number of dead orders, and what waits.
func (w *world) shows(orders int) {
	w.t.Helper()
	counted := fmt.Sprintf("orders: 0; waiting 10m: 42; waiting 1h: 18; waiting 6h: 5; orders.dlq: %d", orders)
	await.Until(w.t, func() bool { return strings.Contains(w.overview(), counted) }, "the console shows %s", counted)
}

// publish makes a dead letter.
func (c cause) publish(w *world, number int, died time.Time) {
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
	w.Publish(c.queue+".dlq", deadletter.Message(state, id, body))
}

// overview returns the first page of the console.
func (w *world) overview() string {
	w.t.Helper()
	response, err := http.Get(w.at(""))
	require.NoError(w.t, err)
	defer func() { _ = response.Body.Close() }()
	page, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)

	return string(page)
}
