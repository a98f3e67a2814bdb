package topology

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/header"
)

// Ladder holds messages on the broker, each for any delay, and then hands them to their targets. It
// is a set of TTL queues through which a message goes digit by digit of its delay, on every
// RabbitMQ from 3.10 on: the layout that NServiceBus calls its delay infrastructure, with digits in
// place of bits.
//
// A target takes part by declaring its part of the ladder. Messages for any other target end where
// an operator finds them, and reach nobody.
//
//	key 0.0.0.3.7.0.q.orders (37s in units of 100ms) is published to level 2, that of the highest digit
//
//	level 2 ─ *.*.*.3.# ─► queue 30s ─┐ TTL expires       exchange "delivery" ─ *.*.*.*.*.*.q.orders ─► orders.landing
//	                                  ▼                        ▲                                              │ TTL 0
//	                            level 1 ─ *.*.*.*.7.# ─► 7s ─► level 0 ─ *.*.*.*.*.0.# ─┘                      ▼
//	                                                                                                        orders
//
// All queues are quorum queues that dead-letter at least once. The queue "unroutable" gets the
// messages that no target takes. A landing queue for each target has no limit, so that a target
// that is full or down keeps nobody else waiting.
type Ladder struct {
	// Config has the names and sizes; see [NewLadder].
	Config config.Ladder
}

// ladderVersion is in all names. Queues and keys of one version never change.
const ladderVersion = "v1"

// NewLadder returns a ladder. Its errors are *config.FieldError.
func NewLadder(c config.Ladder) (Ladder, error) {
	if err := c.Validate(); err != nil {
		return Ladder{}, err
	}
	return Ladder{c.WithDefaults()}, nil
}

// ladderName has the prefix, the unit, the radix and the levels.
var ladderName = regexp.MustCompile(`(?s)^(.+)\.v[0-9]+\.([^.]+)\.([0-9]+)x([0-9]+)$`)

// ParseLadderName returns the ladder with this [Ladder.Name].
func ParseLadderName(name string) (Ladder, error) {
	parts := ladderName.FindStringSubmatch(name)
	if parts == nil {
		return Ladder{}, errors.New("its form is PREFIX.v1.UNIT.RADIXxLEVELS")
	}
	unit, err := config.ParseDelay(parts[2])
	if err != nil {
		return Ladder{}, err
	}
	radix, _ := strconv.Atoi(parts[3]) // at worst the bounds are wrong
	levels, _ := strconv.Atoi(parts[4])
	ladder, err := NewLadder(config.Ladder{Prefix: parts[1], Unit: unit, Radix: radix, Levels: levels})
	if err == nil && ladder.Name() != name {
		err = errors.New("that would be " + ladder.Name())
	}

	return ladder, err
}

// Name begins the names of its exchanges and queues, such as amqpretry.delay.v1.100ms.10x6.
func (l Ladder) Name() string {
	c := l.Config.WithDefaults()
	return fmt.Sprintf("%s.%s.%s.%dx%d", c.Prefix, ladderVersion, config.FormatDelay(c.Unit), c.Radix, c.Levels)
}

// Level is the name of a level's exchange, 0 being the lowest.
func (l Ladder) Level(level int) string { return l.Name() + ".level-" + strconv.Itoa(level) }

// WaitQueue is the name of the queue of a level in which a message waits for a digit: the name of
// the ladder with the time that it waits there.
func (l Ladder) WaitQueue(level, digit int) string {
	return l.Name() + "." + config.FormatDelay(l.Config.TTL(level, digit))
}

// Delivery is the name of the exchange to which targets bind their landing queues.
func (l Ladder) Delivery() string { return l.Name() + ".delivery" }

// Unroutable is the name of the exchange and of the queue for what no target takes.
func (l Ladder) Unroutable() string { return l.Name() + ".unroutable" }

// Hops is in how many queues a message with this delay waits, its target's landing queue included.
func (l Ladder) Hops(delay time.Duration) int {
	hops := 1
	for _, digit := range l.Config.Digits(delay) {
		if digit != 0 {
			hops++
		}
	}
	return hops
}

// Remaining is how long a message in one of the shared queues waits at most until its target gets
// it: the queue's own delay, and the longest that the levels below can add.
func (l Ladder) Remaining(q Queue) time.Duration {
	c := l.Config.WithDefaults()
	if q.Delay == 0 {
		return 0
	}
	step := c.Unit // of the queue's level
	for q.Delay >= step*time.Duration(c.Radix) {
		step *= time.Duration(c.Radix)
	}
	return q.Delay + step - c.Unit
}

// below is where a message goes from a level.
func (l Ladder) below(level int) string {
	if level == 0 {
		return l.Delivery()
	}
	return l.Level(level - 1)
}

// Shared is what all targets of a virtual host have in common, as a plan without a main queue: a
// topic exchange for each level, and a queue for each of its digits but 0. It also has the exchange
// for targets, and the exchange and the queue for unroutable messages. The lowest objects come
// first.
func (l Ladder) Shared() Plan {
	c := l.Config.WithDefaults()
	p := Plan{
		Exchanges: []Exchange{
			{Name: l.Unroutable(), Type: amqp.ExchangeFanout, Durable: true, Shared: true},
			{Name: l.Delivery(), Type: amqp.ExchangeTopic, Durable: true, Shared: true,
				Arguments: amqp.Table{"alternate-exchange": l.Unroutable()}},
		},
		Queues:   []Queue{{Name: l.Unroutable(), Arguments: deadLetterArguments(), Shared: true}},
		Bindings: []Binding{{Exchange: l.Unroutable(), Queue: l.Unroutable()}},
	}
	for level := range c.Levels {
		exchange := l.Level(level)
		p.Exchanges = append(p.Exchanges,
			Exchange{Name: exchange, Type: amqp.ExchangeTopic, Durable: true, Shared: true})
		before := strings.Repeat("*.", c.Levels-1-level)
		p.Bindings = append(p.Bindings, Binding{Exchange: exchange, ToExchange: l.below(level), Key: before + "0.#"})
		for digit := 1; digit < c.Radix; digit++ {
			queue, ttl := l.WaitQueue(level, digit), c.TTL(level, digit)
			arguments := retryArguments(ttl, false)
			arguments["x-dead-letter-exchange"] = l.below(level)
			p.Queues = append(p.Queues, Queue{Name: queue, Delay: ttl, Arguments: arguments, Shared: true})
			key := before + spell(digit) + ".#"
			p.Bindings = append(p.Bindings, Binding{Exchange: exchange, Queue: queue, Key: key})
		}
	}
	return p
}

// Of is what a target declares beside Shared, as a plan without a main queue: its landing queue
// with a binding.
func (l Ladder) Of(target Target, names Names) (Plan, error) {
	names = names.WithDefaults()
	landing := names.Landing(target)
	if err := errors.Join(
		checkName(target.Key, "landing queue", landing, "Names.Landing"), l.checkKey(target, landing),
	); err != nil {
		return Plan{}, err
	}
	arguments := retryArguments(0, false)
	arguments["x-dead-letter-exchange"], arguments["x-dead-letter-routing-key"] = target.Exchange, target.Key
	return Plan{
		Queues:   []Queue{{Name: landing, Arguments: arguments, Landing: true}},
		Bindings: []Binding{{Exchange: l.Delivery(), Queue: landing, Key: l.pattern(target)}},
	}, nil
}

// checkKey refuses a target whose routing key would be longer than AMQP has room for: amqp091-go
// closes the connection over one. Names of exchanges are bounded by the prefix.
//
// Upstream: a name or key of more than 255 bytes ends the connection.
func (l Ladder) checkKey(target Target, landing string) error {
	if n := len(l.pattern(target)); n > maxNameBytes {
		return &NameError{Queue: target.Key, Object: "landing queue", Name: landing, Problem: fmt.Sprintf(
			"the routing key of its target has %d bytes with the %d digits of a delay, the broker takes %d; give the "+
				"queue or the exchange a shorter name", n, l.Config.WithDefaults().Levels, maxNameBytes)}
	}
	return nil
}

// pattern matches the keys of a target, whatever the delay, and no other keys.
func (l Ladder) pattern(target Target) string {
	return strings.Repeat("*.", l.Config.WithDefaults().Levels) + address(target)
}

// Address returns the exchange and the routing key under which a message is published to wait for a
// delay. It shortens a delay beyond [config.Ladder.Longest] to that one, so callers check first.
//
// The broker would act on its own headers, CC, BCC and the expiration while the message waits:
// Address removes them. It lowers a priority above 4 to 4. With higher ones, RabbitMQ 4.0 would
// hold up messages without a priority.
//
// Upstream: a message of a high priority holds up those of a low one whose delay is over.
func (l Ladder) Address(target Target, delay time.Duration, message *amqp.Publishing) (exchange, key string) {
	message.Expiration = ""
	message.Priority = min(message.Priority, header.MaxWaitingPriority)
	for key := range message.Headers {
		if header.IsBroker(key) {
			headers := amqp.Table{}
			for key, value := range message.Headers { // whoever made them may use them elsewhere
				if !header.IsBroker(key) {
					headers[key] = value
				}
			}
			message.Headers = headers
			break
		}
	}

	digits := l.Config.Digits(delay)
	words := make([]string, len(digits), len(digits)+1)
	for i, digit := range digits {
		words[i] = spell(digit)
	}
	highest := slices.IndexFunc(digits, func(digit int) bool { return digit != 0 })
	return l.Level(len(digits) - 1 - highest), strings.Join(append(words, address(target)), ".")
}

func spell(digit int) string { return strconv.FormatInt(int64(digit), 16) }

// address is the end of a key, different for each target: q.orders for the queue orders, x.orders
// for the exchange orders, and x.orders.paid for that with the key paid. A word that is * or #
// would match others in a binding.
func address(t Target) string {
	key := strings.NewReplacer("%", "%25", "*", "%2A", "#", "%23").Replace(t.Key)
	if t.Exchange == "" {
		return "q." + key
	}
	exchange := strings.NewReplacer("%", "%25", "*", "%2A", "#", "%23", ".", "%2E").Replace(t.Exchange)
	if t.Key == "" {
		return "x." + exchange
	}
	return "x." + exchange + "." + key
}

// ParseKey returns the target and the delay of the routing key of a message in the ladder. It is
// false for any other key.
func (l Ladder) ParseKey(key string) (target Target, delay time.Duration, ok bool) {
	c := l.Config.WithDefaults()
	words := strings.SplitN(key, ".", c.Levels+2)
	if len(words) < c.Levels+2 {
		return Target{}, 0, false
	}
	for _, word := range words[:c.Levels] {
		digit, err := strconv.ParseInt(word, 16, 0)
		if err != nil || spell(int(digit)) != word || digit < 0 || int(digit) >= c.Radix {
			return Target{}, 0, false
		}
		delay = delay*time.Duration(c.Radix) + time.Duration(digit)
	}
	delay *= c.Unit
	restore := strings.NewReplacer("%25", "%", "%2A", "*", "%23", "#", "%2E", ".").Replace
	switch rest := words[c.Levels+1]; words[c.Levels] {
	case "q":
		return Target{Key: restore(rest)}, delay, true
	case "x":
		exchange, key, _ := strings.Cut(rest, ".")
		return Target{Exchange: restore(exchange), Key: restore(key)}, delay, true
	default:
		return Target{}, 0, false
	}
}
