package amqpretry

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/retrier"
	"github.com/amqpretry/watermill-retry/retry"
)

// ErrClosed is what a retrier and its subscribers return after their Close.
var ErrClosed = connection.ErrClosed

// Retrier gives the routers that use it retries and dead-letter queues. It is safe for concurrent use.
type Retrier struct {
	retrier *retrier.Retrier
	config  amqp.Config // the user's, with the defaults filled in
}

// New validates conf and options, and reports all problems in one error. It does not connect.
//
// The config is one of watermill-amqp's durable ones, or a user's own with his own TopologyBuilder and Marshaler.
func New(conf amqp.Config, options Options) (*Retrier, error) {
	r := &Retrier{config: withDefaults(conf)}

	var err error
	if r.retrier, err = retrier.New(translate(r.config), retrier.Options(options)); err != nil {
		return nil, err
	}

	return r, nil
}

// Middleware is the retry middleware, to be added to the router before all others. Messages that do not come from this
// retrier pass it untouched.
func (r *Retrier) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return r.retrier.Middleware(h)
}

// CheckRouter is a plugin for routers: router.AddPlugin(retrier.CheckRouter). It looks at the handlers that are fed by
// this retrier, when the router starts and before it subscribes. Router.Run fails with a *middleware.OrderError where
// another middleware is in a place where messages are lost, spin, or are not retried, and with a
// *middleware.NoMiddlewareError where the retry middleware is missing; with middleware.OrderLog both are only logged.
//
// It also logs names of Options.Groups for which no subscriber was made before.
//
// Middlewares that it does not know are no mistake. It reads fields of the router that are not Watermill's API: with a
// version that has others it checks nothing. Without the plugin, and for handlers that are added later, the retry
// middleware itself checks its neighbours: see Options.MiddlewareOrder.
func (r *Retrier) CheckRouter(router *message.Router) error { return r.retrier.CheckRouter(router) }

// Poison is the final step alone, for handlers without retries: their first failure goes to the dead-letter queue. It
// may be added to single handlers of a router that has Middleware.
func (r *Retrier) Poison(h message.HandlerFunc) message.HandlerFunc { return r.retrier.Poison(h) }

// Plan returns the queues, exchanges and bindings that a topic needs beside its main queue.
func (r *Retrier) Plan(topic string) (topology.Plan, error) { return r.retrier.Plan(topic) }

// Definitions returns everything that a service with these topics declares, as a file for `rabbitmqctl import_definitions`:
// for an operator who provisions it, and a service with topology.Assume that may configure nothing. It does not
// connect.
//
// Beside the plans it has what watermill-amqp's own TopologyBuilder would declare by the config: the main queues with
// their arguments and protection, the exchanges of the topics, and the bindings. A custom TopologyBuilder cannot be
// asked what it would declare, so what that does otherwise must be provisioned by other means. The virtual host, which
// must exist, is that of the connection.
//
// A number in config.QueueBind.Arguments has 64 bits when it is imported and as many as its Go type when it is
// declared; who declares later binds a second time then, which routes alike.
//
// The names of the queues are generated here as in Subscribe, so a generator must give the same name each time.
// Everything that is wrong is reported at once.
func (r *Retrier) Definitions(topics ...string) ([]byte, error) {
	return r.retrier.Definitions(topics...)
}

// ProtectPolicy returns the broker policy that keeps an existing quorum main queue from losing messages. Give its String
// to an operator. Once it is set, use config.ProtectionPolicy.
func (r *Retrier) ProtectPolicy(topic string) (topology.BrokerPolicy, error) {
	return r.retrier.ProtectPolicy(topic)
}

// QueueDepths returns the number of ready messages in queues of the retrier, sorted by name. These are the retry queues
// and dead-letter queues of all topics that are subscribed to through this retrier, under their present policies. The
// queues that its delay publishers have used come with them.
//
// It asks the broker over AMQP, by a connection of its own that the first call opens: the management plugin is not
// needed. A topic counts until its last subscription ends; with a stock subscriber, which does not tell that, until
// Close.
//
// Where some of it cannot be found out, it gives the rest and an error; at the end of ctx it returns, whatever the
// broker does. middleware/metrics asks it at each scrape.
func (r *Retrier) QueueDepths(ctx context.Context) ([]retry.QueueDepth, error) {
	return r.retrier.QueueDepths(ctx)
}

// Close closes the subscribers that are still open, then the publishers, and then the connection for copies. Close it
// after the router.
//
// It takes CloseTimeout at the longest for handlers and copies, and as long again for what is being published. If the broker
// does not answer at all, it takes some seconds more.
func (r *Retrier) Close() error { return r.retrier.Close() }

// Format prints what it is, under any verb: the config has the password of the broker's user in it.
func (r Retrier) Format(f fmt.State, verb rune) { r.retrier.Format(f, verb) }
