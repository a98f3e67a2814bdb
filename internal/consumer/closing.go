package consumer

import (
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/connection"
	"github.com/amqpretry/watermill-retry/internal/publish"
)

// A channel that closes loses acknowledgements. RabbitMQ's client of a quorum queue, which is part
// of the channel, sends 32 commands (acks and nacks, each of one delivery or of many) and keeps the
// rest until the queue has applied those; what it still keeps when the channel closes is dropped,
// and the messages come again. So an acknowledgement is safe only when few commands were sent
// before it, or when the queue has applied them: see settleCommands.

const (
	// safeCommands is how many commands a channel may have sent when it closes. RabbitMQ's limit is
	// 32.
	safeCommands = 16
	// quickClose is how long what was delivered ahead is kept when the subscription closes: if the
	// handlers finish by then, one nack gives all of it back.
	quickClose = 100 * time.Millisecond
	// applyTime is how long commands are given to be applied, where nothing tells that they are.
	applyTime = 300 * time.Millisecond
)

// close ends the session. While the subscription closes, it waits for what is handed out and for
// the copies, until the deadline; else the broker has taken everything back already, and nothing is
// waited for.
func (s *session) close() {
	defer s.cancel(publish.ErrGone)

	if s.isGone() {
		s.acker.close()
		return
	}
	if !s.sub.isClosing() { // cancelled by the broker
		// RabbitMQ closes the connection, with all other sessions, when a method follows the
		// channel's close.
		connection.WaitUntil(time.Now().Add(closeGrace), func() { <-s.intake.taken })
		// The queue applies nothing any more. From 4.3 on, to consume from one that is being
		// deleted would close the connection as well.
		//
		// Upstream: a consumer of a queue that is being deleted ends the connection; no issue
		// known, measured; RabbitMQ 4.3; no test; remove when it is refused.
		s.shut(time.Now().Add(closeGrace), func() {})

		return
	}

	finished := func() {
		s.sub.workers.Wait()
		s.paused.Wait() // what is over can begin a forward
		s.forwards.Wait()
	}
	// Also where the deadline is long over, as for a session that opens late: no method may follow
	// the channel's close.
	isTaken := connection.WaitUntil(latest(s.sub.deadline, time.Now().Add(closeGrace)), func() { <-s.intake.taken })
	if isTaken && !connection.WaitUntil(earliest(s.sub.deadline, time.Now().Add(quickClose)), finished) {
		for _, d := range s.intake.returned { // others can handle them meanwhile
			s.requeueOf(d.DeliveryTag)
		}
	}
	connection.WaitUntil(s.sub.deadline, finished)
	s.shut(latest(s.sub.deadline, time.Now().Add(closeGrace)), func() { s.settleCommands() })
}

// shut writes the last acknowledgements, gives back whatever is not settled, and closes the
// channel. The broker counts as failed what a closing channel leaves behind, and an explicit nack
// not everywhere. settle makes the queue apply what was written before.
//
// Where the broker does not answer, the one who takes deliveries may still be at a call. The
// channel closes behind it, as RabbitMQ closes the connection, with the sessions of all who share
// it, when a method follows the channel's close.
//
// Upstream: a method that follows the close of its channel ends the connection;
// rabbitmq/amqp091-go#87; RabbitMQ 3.10 to 4.3; TestBrokerCancels_ChannelIsClosedLast,
// TestSubscribe_AnswerComesLate, TestClose_NoAnswer; remove when the broker drops such methods.
func (s *session) shut(deadline time.Time, settle func()) {
	connection.WaitUntil(deadline, func() {
		commands := s.acker.close()
		select {
		case <-s.intake.taken:
		default:
			s.giveBackAll() // the connection may end before there is an answer
			<-s.intake.taken
		}
		if commands > safeCommands || s.countsLeft {
			settle()
		}
		s.giveBackAll()
		_ = s.channel.Close()
	})
}

// giveBackAll nacks all that is not settled. Zero stands for that: the last tag may be settled, and
// is unknown then.
//
// Upstream: amqp091-go drops what arrives for a consumer that is cancelled; streadway/amqp#264;
// amqp091-go 1.16; TestShutdownAtRandomMoments; remove when the broker gives such messages back.
func (s *session) giveBackAll() { _ = s.channel.Nack(0, true, true) }

// settleCommands returns when a quorum queue has applied all commands of the channel.
//
// A consumer is registered through the queue's log, behind the commands that the channel has sent;
// and the channel sends those that it has kept before it cancels the consumer, likewise through the
// log. What is delivered in between goes back with the rest, and so do messages that were on their
// way to a consumer when it was cancelled: amqp091-go drops them.
//
// Upstream: acknowledgements that a channel still keeps are lost when it closes; no issue known,
// measured; RabbitMQ 3.10 to 4.3; TestCloseKeepsAllAcknowledgements,
// TestCloseWaitsForTheQueue_OwnBroker, TestCloseRightBehindManyAcknowledgements,
// TestClosesLoseNoAcknowledgement; remove when a close applies what the channel was sent.
func (s *session) settleCommands() {
	if s.sub.consumer.settings.Exclusive { // another process may consume by now, and a refusal would close the channel
		<-time.After(applyTime)
		return
	}

	const last = -1 << 31 // others, if there are any, are to get the message
	if s.channel.Qos(1, 0, false) != nil {
		return
	}
	tag := s.intake.tagWith("close")
	deliveries, err := s.channel.Consume(s.queue.Name, tag, false, false, false, false,
		amqp091.Table{"x-priority": int32(last)})
	if err != nil {
		return
	}
	if s.channel.Cancel(tag, false) != nil {
		return
	}
	for range deliveries {
	}
}
