package codec

import (
	"cmp"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/wire"
	"github.com/amqpretry/watermill-retry/retry"
)

// foreign reads the headers of other libraries that dead-letter messages themselves. A reader sets
// the Reason if its library tells of a failure. Names and formats are from its source, as of
// August 2026:
//   - Spring AMQP: RepublishMessageRecoverer; Spring Cloud Stream: RabbitMessageChannelBinder
//   - MassTransit: MessageHeaders, and SendContextExtensions.SetExceptionHeaders
//   - NServiceBus: FaultsHeaderKeys, FaultMetadataExtractor and DateTimeOffsetHelper
//   - Watermill: middleware.PoisonQueue
var foreign = []func(amqp091.Table) retry.DeadLetter{springAMQP, massTransit, nServiceBus, poisonQueue}

// faultOf returns the failure that another library has written into the headers of a message; one
// without a Reason if there is none. Anybody can have written it: the bounds are those of ours.
func faultOf(headers amqp091.Table) (l retry.DeadLetter) {
	for _, read := range foreign {
		if l = read(headers); l.Reason != "" {
			break
		}
	}
	l.Error, l.ErrorType = wire.Text(l.Error, wire.MaxErrorBytes), wire.Text(l.ErrorType, wire.MaxErrorTypeBytes)
	for _, name := range []*string{&l.Queue, &l.Topic, &l.Handler, &l.Host, &l.Exchange, &l.RoutingKey} {
		*name = wire.Text(*name, wire.MaxNameBytes)
	}

	return l
}

// complete adds the failure that another library tells of to a dead letter of which our headers
// name neither error nor handler.
func complete(l *retry.DeadLetter, fault retry.DeadLetter) {
	if l.Error != "" || l.ErrorType != "" || l.Topic != "" || l.Handler != "" {
		return
	}
	l.Error, l.ErrorType, l.Topic, l.Handler = fault.Error, fault.ErrorType, fault.Topic, fault.Handler
	l.Reason, l.Host, l.Calls = cmp.Or(l.Reason, fault.Reason), cmp.Or(l.Host, fault.Host), max(l.Calls, fault.Calls)
	if fault.LastFailure.After(l.LastFailure) {
		l.LastFailure = fault.LastFailure
	}
	if l.Exchange == "" && l.RoutingKey == "" {
		l.Exchange, l.RoutingKey = fault.Exchange, fault.RoutingKey
	}
}

// isNewer tells whether a fault is what happened last to a message, and not the death: some
// libraries keep the x-death of earlier waits when they publish a message to an error queue.
func isNewer(fault retry.DeadLetter, death amqp091.Table, mainQueue string) bool {
	if fault.Reason == "" {
		return false
	}
	at, _ := death["time"].(time.Time)
	waited := death["reason"] == expired && death["queue"] != mainQueue

	return waited || !fault.LastFailure.IsZero() && !fault.LastFailure.Before(at)
}

// failed returns l with the reason of a message that another consumer has given up, if told.
func failed(l retry.DeadLetter, told bool) retry.DeadLetter {
	if told {
		l.Reason = retry.ReasonRejected
	}

	return l
}

// springAMQP tells no time and no queue. Recent versions tell no type by default.
func springAMQP(h amqp091.Table) retry.DeadLetter {
	class, message := thrown(tolerant(h["x-exception-stacktrace"]))
	l := retry.DeadLetter{
		Error: cmp.Or(tolerant(h["x-exception-message"]), message, class), ErrorType: class,
		Exchange: tolerant(h["x-original-exchange"]), RoutingKey: tolerant(h["x-original-routingKey"]),
	}

	return failed(l, l.Error != "" || l.Exchange != "" || l.RoutingKey != "")
}

// thrown returns the class and the text of the exception whose message is in x-exception-message:
// of the first cause in a Java stack trace, as the exception around it is of the listener; without
// a cause, of the exception itself.
func thrown(trace string) (class, message string) {
	_, cause, found := strings.Cut(trace, "\nCaused by: ")
	if !found {
		cause = trace
	}
	line, _, _ := strings.Cut(cause, "\n")
	line = strings.TrimSpace(line)
	if class, message, _ = strings.Cut(line, ": "); strings.ContainsAny(class, " \t") { // no class has a space
		return "", line
	}

	return class, message
}

func massTransit(h amqp091.Table) retry.DeadLetter {
	l := retry.DeadLetter{
		Error: tolerant(h["MT-Fault-Message"]), ErrorType: tolerant(h["MT-Fault-ExceptionType"]),
		Queue: queueOf(tolerant(h["MT-Fault-InputAddress"])), Topic: tolerant(h["MT-Fault-MessageType"]),
		Handler: tolerant(h["MT-Fault-ConsumerType"]), Host: tolerant(h["MT-Host-MachineName"]),
		LastFailure: moment(h["MT-Fault-Timestamp"]),
	}
	if retries, err := strconv.Atoi(tolerant(h["MT-Fault-RetryCount"])); err == nil && retries >= 0 {
		l.Calls = min(retries, math.MaxInt32-1) + 1
	}

	return failed(l, l.Error != "" || l.ErrorType != "")
}

// queueOf returns the queue of an address such as rabbitmq://host/vhost/orders?durable=false.
func queueOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	path := u.EscapedPath()
	queue, _ := url.PathUnescape(path[strings.LastIndexByte(path, '/')+1:])

	return queue
}

// nServiceBus: the types are a list, each with its assembly: "Shop.Order, Shop, Version=1.0.0.0;…".
func nServiceBus(h amqp091.Table) retry.DeadLetter {
	topic, _, _ := strings.Cut(tolerant(h["NServiceBus.EnclosedMessageTypes"]), ",")
	l := retry.DeadLetter{
		Error:     tolerant(h["NServiceBus.ExceptionInfo.Message"]),
		ErrorType: tolerant(h["NServiceBus.ExceptionInfo.ExceptionType"]),
		Queue:     tolerant(h["NServiceBus.FailedQ"]), Topic: topic,
		Handler: tolerant(h["NServiceBus.ProcessingEndpoint"]), Host: tolerant(h["NServiceBus.ProcessingMachine"]),
		LastFailure: moment(h["NServiceBus.TimeOfFailure"]),
	}

	return failed(l, l.Error != "" || l.ErrorType != "")
}

// poisonQueue passes over our own dead letters of any version, which carry the same keys.
func poisonQueue(h amqp091.Table) (l retry.DeadLetter) {
	if _, ours := h[header.Version]; ours {
		return l
	}
	l = retry.DeadLetter{
		Error: tolerant(h[header.PoisonReason]), Topic: tolerant(h[header.PoisonTopic]),
		Handler: tolerant(h[header.PoisonHandler]),
	}

	return failed(l, l.Error != "")
}

// tolerant returns a header as text, whatever type its client gives to texts.
func tolerant(value any) string {
	if b, ok := value.([]byte); ok {
		return string(b)
	}

	return HeaderText(value)
}

// moment reads ISO 8601, and the format of NServiceBus: "2026-01-02 03:04:05:678901 Z".
func moment(value any) time.Time {
	if at, ok := value.(time.Time); ok {
		return at.UTC()
	}
	const seconds = len(time.DateTime)
	text := tolerant(value)
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at.UTC()
	}
	if len(text) <= seconds || text[seconds] != ':' {
		return time.Time{}
	}
	at, _ := time.Parse(time.DateTime+" Z", text[:seconds]+"."+text[seconds+1:])

	return at
}

// Origin returns the queue in which a dead letter has failed, by our headers, those of other
// libraries and those of the broker; empty if none tells. Spring AMQP tells the exchange and the
// routing key, which name a queue where the exchange is the default one.
func Origin(d *amqp091.Delivery) string {
	l, _ := DeadLetter(d, ownQueue(d))
	key := ""
	if exchange, told := d.Headers["x-original-exchange"]; told && tolerant(exchange) == "" {
		key = tolerant(d.Headers["x-original-routingKey"])
	}

	return cmp.Or(l.Queue, wire.Text(key, wire.MaxNameBytes), bounded(d.Headers, header.FirstDeathQueue))
}
