package topology

import (
	"crypto/rand"

	amqp "github.com/rabbitmq/amqp091-go"
)

// CheckAccess finds out whether the user may publish dead letters by the default exchange, as the scope "shared" does; in
// the scope "queue" the broker has asked for that when the retry queues were declared. Without it Subscribe would succeed
// and the first dead letter be held for ever. It publishes a message that no queue gets, and needs a channel that may be
// closed by the broker. The error is an *[AccessError].
func (p Plan) CheckAccess(ch *amqp.Channel) error {
	if p.DeadLetterQueue == "" || !p.endsByDefaultExchange() {
		return nil
	}
	closed := ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Publish("", "nobody-"+rand.Text(), false, false, amqp.Publishing{}); err != nil {
		return Explain(KindExchange, defaultExchange, err)
	}
	// Its answer comes after the broker has looked at the publish.
	_, err := ch.QueueDeclarePassive(p.DeadLetterQueue, true, false, false, false, nil)
	if err == nil {
		return nil
	}
	if reason := <-closed; reason != nil { // the broker's words, also if the channel was closed before the call
		err = reason
	}
	return Explain(KindExchange, defaultExchange, err)
}

// defaultExchange is the name of the default exchange in permissions and in the broker's words.
const defaultExchange = "amq.default"
