package amqpretry

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/internal/plug"
	"github.com/amqpretry/watermill-retry/middleware"
)

// Plug gives the routers that use it retries and dead-letter queues. It is safe for concurrent use.
type Plug struct {
	plug   *plug.Plug
	config amqp.Config // the user's, with the defaults filled in
}

// New checks the config and the options, all of both at once, and returns a plug. The broker is not touched.
//
// The config is one of watermill-amqp's durable ones, or a user's own with his own TopologyBuilder and Marshaler.
func New(conf amqp.Config, options Options) (*Plug, error) {
	p := &Plug{config: withDefaults(conf)}

	var err error
	if p.plug, err = plug.New(translate(p.config), options, p); err != nil {
		return nil, err
	}

	return p, nil
}

// NewSubscriber connects and returns a subscriber. Plug.Close closes it if it is still open.
func (p *Plug) NewSubscriber() (*Subscriber, error) { return p.plug.NewSubscriber() }

// NewDeadLetterSubscriber connects and returns a subscriber to dead letters. Plug.Close closes it if it is still open.
func (p *Plug) NewDeadLetterSubscriber() (*DeadLetterSubscriber, error) {
	return p.plug.NewDeadLetterSubscriber()
}

// Middleware is the retry middleware, to be added to the router before all others. Messages that do not come from this plug
// pass it untouched.
func (p *Plug) Middleware(h message.HandlerFunc) message.HandlerFunc { return p.plug.Middleware(h) }

// CheckRouter is a plugin for routers: router.AddPlugin(plug.CheckRouter). It looks at the handlers that are fed by this plug, when
// the router starts and before it subscribes. Router.Run fails with a *middleware.OrderError where another middleware is in a place
// where messages are lost, spin, or are not retried, and with a *NoMiddlewareError where the retry middleware is missing; with
// middleware.OrderLog both are only logged.
//
// Middlewares that it does not know are no mistake. It reads fields of the router that are not Watermill's API: with a version that has others
// it checks nothing. Without the plugin, and for handlers that are added later, the retry middleware itself checks its neighbours: see
// Options.MiddlewareOrder.
func (p *Plug) CheckRouter(router *message.Router) error { return p.plug.CheckRouter(router) }

// Poison is the final step alone, for handlers without retries: their first failure goes to the dead-letter queue. It may be
// added to single handlers of a router that has Middleware.
func (p *Plug) Poison(h message.HandlerFunc) message.HandlerFunc { return p.plug.Poison(h) }

// Plan is what the broker is to hold for a topic beside its main queue.
func (p *Plug) Plan(topic string) (topology.Plan, error) { return p.plug.Plan(topic) }

// Definitions is everything that a service with these topics declares, as a file for `rabbitmqctl import_definitions`: for an
// operator who provisions it, and a service with TopologyAssume that may configure nothing. The broker is not touched.
//
// Beside the plans it has what watermill-amqp's own TopologyBuilder would declare by the config: the main queues with their
// arguments and protection, the exchanges of the topics, and the bindings. A custom TopologyBuilder cannot be asked what it
// would declare, so what that does otherwise must be provisioned by other means. The virtual host, which must exist, is that
// of the connection.
//
// A number in config.QueueBind.Arguments has 64 bits when it is imported and as many as its Go type when it is declared; who
// declares later binds a second time then, which routes alike.
//
// The names of the queues are generated here as in Subscribe, so a generator must give the same name each time. Everything
// that is wrong is reported at once.
func (p *Plug) Definitions(topics ...string) ([]byte, error) { return p.plug.Definitions(topics...) }

// ProtectPolicy is the policy of the broker that keeps an existing quorum main queue from losing messages. Its String is what
// to give to an operator; when he has set it, say so with config.ProtectionPolicy.
func (p *Plug) ProtectPolicy(topic string) (topology.BrokerPolicy, error) {
	return p.plug.ProtectPolicy(topic)
}

// QueueDepths returns the number of ready messages in the retry queues and the dead-letter queues of all topics that are subscribed to
// through this plug, under their present policies, sorted by name. It asks the broker over AMQP, by a connection of its own that the
// first call opens: the management plugin is not needed. A topic counts until its last subscription ends; with a stock subscriber,
// which does not tell that, until Close.
//
// Where some of it cannot be found out, it gives the rest and an error; at the end of ctx it returns, whatever the broker does.
// middleware/metrics asks it at each scrape.
func (p *Plug) QueueDepths(ctx context.Context) ([]middleware.QueueDepth, error) {
	return p.plug.QueueDepths(ctx)
}

// Close closes the subscribers that are still open, and then the connection for copies. Close it after the router. It takes
// CloseTimeout at the longest for handlers and copies, and some seconds more if the broker does not answer at all.
func (p *Plug) Close() error { return p.plug.Close() }

// Format prints what it is, under any verb: the config has the password of the broker's user in it.
func (p Plug) Format(f fmt.State, verb rune) { p.plug.Format(f, verb) }
