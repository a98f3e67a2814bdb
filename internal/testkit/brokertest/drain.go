package brokertest

import "github.com/rabbitmq/amqp091-go"

// Drain takes all that is in a queue. It asks for one message after the other until the queue says that it is empty, as
// silence proves nothing, and the queue's counts may be old. A consumer that is cancelled proves nothing either:
// RabbitMQ 3.10 forgets what is on the way to it. What a channel held that has just been closed comes back when the
// queue has noticed: wait until it has no consumers before.
func Drain(channel *amqp091.Channel, queue string) ([]amqp091.Delivery, error) {
	var all []amqp091.Delivery
	for {
		d, ok, err := channel.Get(queue, true)
		if err != nil || !ok {
			return all, err
		}
		all = append(all, d)
	}
}
