package order

// effect is what a middleware does in a place.
type effect struct {
	level   Level
	problem string
	remedy  string
	// stock means that the retrier's own subscriber is not affected.
	stock bool
}

// rule knows the middleware whose functions have names with this prefix. The router offers no other way to tell which
// it has. A name that is not known, or has changed, is no mistake: what users have made themselves must never be
// refused.
type rule struct {
	prefix          string
	middleware      string
	outside, inside *effect
}

const (
	module            = "github.com/amqpretry/watermill-retry/"
	watermillPrefix   = "github.com/ThreeDotsLabs/watermill/message/router/middleware."
	poisonQueuePrefix = watermillPrefix + "poisonQueue."
	protectPrefix     = module + "middleware/protect."
	metricsPrefix     = "github.com/ThreeDotsLabs/watermill/components/metrics.HandlerPrometheusMetricsMiddleware."
	tracingPrefix     = module + "middleware/tracing."
	routerName        = "github.com/ThreeDotsLabs/watermill/message.(*handler).handleMessage"
)

var (
	sees = func(what string) *effect {
		return &effect{
			level: Wrong, problem: "outside of the retry middleware and never sees an error",
			remedy: "add the retry middleware first" + what,
		}
	}
	takesRetries = func(where string) *effect {
		return &effect{
			level: Loses, problem: where + " of the retry middleware: it takes retries for duplicates, and they are " +
				"lost",
			remedy: "use protect.Deduplicator, or protect.ByAttempt(deduplicator), inside of the retry middleware",
		}
	}
	failsOutside = &effect{
		level: Loses, problem: "outside of the retry middleware: what it fails is redelivered at once, without count " +
			"or delay",
		remedy: "add the retry middleware first",
	}
)

// rules has every middleware of Watermill 1.5, and of this module, that can do harm. The others may be on either side:
// CorrelationID, Recoverer, Throttle and Timeout.
var rules = []rule{
	{
		prefix: watermillPrefix + "(*Deduplicator).Middleware", middleware: "Watermill's Deduplicator",
		outside: takesRetries("outside"), inside: takesRetries("inside"),
	},
	{
		prefix: watermillPrefix + "InstantAck", middleware: "Watermill's InstantAck",
		outside: &effect{
			level: Loses, problem: "outside of the retry middleware: messages are acknowledged before they are " +
				"handled: those that fail are lost on a stock subscriber, and can be lost on the retrier's own",
			remedy: "remove it, or keep its handlers on a subscriber without retries",
		},
		inside: &effect{
			level: Loses, stock: true,
			problem: "inside of the retry middleware, on a stock subscriber: failed messages are acknowledged at " +
				"once, and lost",
			remedy: "remove it, or use retrier.NewSubscriber()",
		},
	},
	{
		prefix: watermillPrefix + "Duplicator", middleware: "Watermill's Duplicator",
		outside: &effect{
			level: Loses, problem: "outside of the retry middleware: each failure is forwarded twice",
			remedy: "add the retry middleware first",
		},
	},
	{prefix: watermillPrefix + "RandomFail", middleware: "Watermill's RandomFail", outside: failsOutside},
	{prefix: watermillPrefix + "RandomPanic", middleware: "Watermill's RandomPanic", outside: failsOutside},
	{prefix: protectPrefix, middleware: "a middleware of package protect", outside: failsOutside},
	{prefix: tracingPrefix, middleware: "the middleware of package tracing", outside: sees("")},
	{
		prefix: poisonQueuePrefix, middleware: "Watermill's PoisonQueue",
		outside: &effect{
			level: Wrong, problem: "outside of the retry middleware and sees no error but those of shutdowns, which " +
				"are no failures",
			remedy: "remove it: dead letters go to the dead-letter queue",
		},
		inside: &effect{ // PoisonQueueWithFilter has the same name, and may be meant
			level: Possible, problem: "inside of the retry middleware and takes its errors away: they are not retried",
			remedy: "remove it: dead letters go to the dead-letter queue",
		},
	},
	{
		prefix: watermillPrefix + "Retry.", middleware: "Watermill's Retry",
		outside: sees("; inside of it, Watermill's Retry makes immediate tries within one attempt"),
	},
	{prefix: watermillPrefix + "CircuitBreaker.", middleware: "Watermill's CircuitBreaker",
		outside: sees(", or use protect.CircuitBreaker inside of it")},
	{
		prefix: metricsPrefix, middleware: "the middleware of Watermill's components/metrics",
		outside: &effect{
			level: Possible, problem: "outside of the retry middleware: it counts every failure as a success",
			remedy: "call AddPrometheusRouterMetrics after the retry middleware was added",
		},
	},
	{prefix: watermillPrefix + "IgnoreErrors.", middleware: "Watermill's IgnoreErrors", outside: sees("")},
	{prefix: watermillPrefix + "(*DelayOnError).", middleware: "Watermill's DelayOnError",
		outside: sees(", and remove DelayOnError: policies have delays")},
}
