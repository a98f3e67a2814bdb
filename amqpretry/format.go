package amqpretry

import "fmt"

// What these hold has the password of the broker's user in it: they print nothing of themselves, under no verb.

// Format prints what it is.
func (p *Plug) Format(f fmt.State, _ rune) { format(f, p) }

// Format prints what it is.
func (s *Subscriber) Format(f fmt.State, _ rune) { format(f, s) }

// Format prints what it is.
func (s *DeadLetterSubscriber) Format(f fmt.State, _ rune) { format(f, s) }

func format(f fmt.State, v any) { _, _ = fmt.Fprintf(f, "%T(%p)", v, v) }
