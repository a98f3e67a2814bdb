package retrier

import "fmt"

// What these hold has the password of the broker's user in it: they print nothing of themselves, under no verb.

// Format prints what it is.
func (r *Retrier) Format(f fmt.State, _ rune) { format(f, "Retrier", r) }

// Format prints what it is.
func (s *Subscriber) Format(f fmt.State, _ rune) { format(f, "Subscriber", s) }

// Format prints what it is.
func (s *DeadLetterSubscriber) Format(f fmt.State, _ rune) { format(f, "DeadLetterSubscriber", s) }

// Format prints what it is.
func (p *Publisher) Format(f fmt.State, _ rune) { format(f, "Publisher", p) }

// Format prints what it is.
func (p *DelayPublisher) Format(f fmt.State, _ rune) { format(f, "DelayPublisher", p) }

func format(f fmt.State, name string, v any) { _, _ = fmt.Fprintf(f, "*amqpretry.%s(%p)", name, v) }

// String names the subscriber for Watermill, which writes that on messages and metrics: the same for all versions of
// watermill-amqp.
func (s *Subscriber) String() string { return "amqpretry.Subscriber" }

// String names the subscriber for Watermill.
func (s *DeadLetterSubscriber) String() string { return "amqpretry.DeadLetterSubscriber" }

// String names the publisher for Watermill.
func (p *Publisher) String() string { return "amqpretry.Publisher" }

// String names the publisher for Watermill.
func (p *DelayPublisher) String() string { return "amqpretry.DelayPublisher" }
