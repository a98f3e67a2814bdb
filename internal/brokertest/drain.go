package brokertest

import "github.com/rabbitmq/amqp091-go"

// Drain takes and acknowledges all that is in a queue which nobody else consumes. Silence proves nothing, so it waits for none: before the
// cancel of a consumer is answered, it has been sent what was ready, up to its prefetch count. One that got nothing found the queue empty.
// What a channel held that has just been closed is not there before the queue has noticed; it has, when that channel's connection is closed.
func Drain(channel *amqp091.Channel, queue string) ([]amqp091.Delivery, error) {
	if err := channel.Qos(200, 0, false); err != nil {
		return nil, err
	}
	var all []amqp091.Delivery
	for {
		deliveries, err := channel.Consume(queue, "drain", false, false, false, false, nil)
		if err != nil {
			return all, err
		}
		if err := channel.Cancel("drain", false); err != nil {
			return all, err
		}
		before := len(all)
		for d := range deliveries {
			all = append(all, d)
			if err := d.Ack(false); err != nil {
				return all, err
			}
		}
		if len(all) == before { // and its questions went behind the acknowledgements, so these are through
			return all, nil
		}
	}
}
