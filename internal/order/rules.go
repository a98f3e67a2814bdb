package order

// effect is what a middleware does in a place.
type effect struct {
	level   Level
	problem string
	remedy  string
	// stock means that the retrier's own subscriber is not affected.
	stock bool
}

// rule knows the middleware whose functions have names with this prefix. The router offers no other
// way to tell which it has. A name that is not known, or has changed, is no mistake: what users
// have made themselves must never be refused.
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
			level: Wrong, problem: "added before retrier.Middleware, so it never sees an error",
			remedy: "add retrier.Middleware first" + what,
		}
	}
	takesRetries = func(where string) *effect {
		return &effect{
			level: Loses, problem: "added " + where + " retrier.Middleware: it treats retries as duplicates and " +
				"deletes them",
			remedy: "use protect.Deduplicator, or protect.ByAttempt(deduplicator), and add it after retrier.Middleware",
		}
	}
	failsOutside = &effect{
		level: Loses, problem: "added before retrier.Middleware: messages that it fails are redelivered at once, " +
			"without a count or a delay",
		remedy: "add retrier.Middleware first",
	}
)

// rules has every middleware of Watermill 1.5, and of this module, that can do harm. The others may
// be on either side: CorrelationID, Recoverer, Throttle and Timeout.
var rules = []rule{
	{
		prefix: watermillPrefix + "(*Deduplicator).Middleware", middleware: "Watermill's Deduplicator",
		outside: takesRetries("before"), inside: takesRetries("after"),
	},
	{
		prefix: watermillPrefix + "InstantAck", middleware: "Watermill's InstantAck",
		outside: &effect{
			level: Loses, problem: "added before retrier.Middleware: it acknowledges messages before they are " +
				"handled; a stock subscriber loses those that fail, and the retrier's own may lose them",
			remedy: "remove it, or keep its handlers on a subscriber without retries",
		},
		inside: &effect{
			level: Loses, stock: true,
			problem: "added after retrier.Middleware, on a stock subscriber: it acknowledges failed messages, " +
				"and they are lost",
			remedy: "remove it, or use retrier.NewSubscriber()",
		},
	},
	{
		prefix: watermillPrefix + "Duplicator", middleware: "Watermill's Duplicator",
		outside: &effect{
			level: Loses, problem: "added before retrier.Middleware: each failed message is forwarded twice",
			remedy: "add retrier.Middleware first",
		},
	},
	{prefix: watermillPrefix + "RandomFail", middleware: "Watermill's RandomFail", outside: failsOutside},
	{prefix: watermillPrefix + "RandomPanic", middleware: "Watermill's RandomPanic", outside: failsOutside},
	{prefix: protectPrefix, middleware: "a middleware of package protect", outside: failsOutside},
	{prefix: tracingPrefix, middleware: "the middleware of package tracing", outside: sees("")},
	{
		prefix: poisonQueuePrefix, middleware: "Watermill's PoisonQueue",
		outside: &effect{
			level: Wrong, problem: "added before retrier.Middleware, so it never sees a failure",
			remedy: "remove it: failed messages go to the dead-letter queue",
		},
		inside: &effect{ // PoisonQueueWithFilter has the same name, and may be meant
			level: Possible, problem: "added after retrier.Middleware and hides errors from it: those messages are " +
				"not retried",
			remedy: "remove it: failed messages go to the dead-letter queue",
		},
	},
	{
		prefix: watermillPrefix + "Retry.", middleware: "Watermill's Retry",
		outside: sees("; after it, Watermill's Retry makes immediate tries within one attempt"),
	},
	{prefix: watermillPrefix + "CircuitBreaker.", middleware: "Watermill's CircuitBreaker",
		outside: sees(", or use protect.CircuitBreaker after it")},
	{
		prefix: metricsPrefix, middleware: "the middleware of Watermill's components/metrics",
		outside: &effect{
			level: Possible, problem: "added before retrier.Middleware: it counts every failure as a success",
			remedy: "call AddPrometheusRouterMetrics after router.AddMiddleware(retrier.Middleware)",
		},
	},
	{prefix: watermillPrefix + "IgnoreErrors.", middleware: "Watermill's IgnoreErrors", outside: sees("")},
	{prefix: watermillPrefix + "(*DelayOnError).", middleware: "Watermill's DelayOnError",
		outside: sees(", and remove DelayOnError: policies have delays")},
}
