package chaos

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/fate"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/versions/amqp"
	"github.com/amqpretry/watermill-retry/retry"
)

const (
	uuidKey = amqp.DefaultMessageUUIDHeaderKey
	idKey   = header.ID
)

var text = rabbit.Text

// digest of a message as a handler is to have it.
func digest(p amqp091.Publishing) string {
	metadata := map[string]string{}
	for k, v := range p.Headers {
		if s, ok := v.(string); ok && k != uuidKey { // Digest leaves the others out
			metadata[k] = s
		}
	}

	return Digest(p.Body, metadata)
}

// inspect tells what is wrong with a dead letter: it must be the message that was sent, and say
// whatever there is to say about it. returned tells that attempts can have been counted that nobody
// has made.
func inspect(sent *Sent, letter Letter, returned bool) []string {
	d, f := letter.Message, fate.Of(sent.ID)
	var problems []string
	is := func(what string, ok bool) {
		if !ok {
			problems = append(problems, what)
		}
	}

	is("in the dead-letter queue of "+letter.Topic, letter.Topic == sent.Topic)
	problems = append(problems, changed(sent.Message, d)...)

	reason := retry.Reason(text(d, header.Reason))
	// A message that was delivered that often, because connections were lost, counts as one that
	// kills its process.
	crashed := reason == retry.ReasonCrashed && find(sent.Topic).Main == "quorum"
	is(fmt.Sprintf("reason %q", reason), slices.Contains(f.Reasons(), reason) || crashed)

	first, errFirst := time.Parse(time.RFC3339, text(d, header.FirstFailure))
	last, errLast := time.Parse(time.RFC3339, text(d, header.LastFailure))
	is("no times", errFirst == nil && errLast == nil)
	calls, err := strconv.Atoi(text(d, header.Attempts))
	is("no number of attempts", err == nil && calls >= 0)
	is("count", text(d, header.Count) == "-1" && d.Headers[header.Delay] == nil)
	is("queue", text(d, header.Queue) == sent.Topic)
	is("topic", text(d, header.Topic) == sent.Topic)
	is("host", text(d, header.Host) != "")
	is("error", text(d, header.Error) != "" && text(d, header.ErrorType) != "")
	is("arrival", d.Headers[header.Exchange] == "" && text(d, header.RoutingKey) == sent.Topic)
	is("poison keys", text(d, header.PoisonReason) != "" && text(d, header.PoisonTopic) == sent.Topic)
	if !crashed && f != fate.Undecodable {
		is("handler", text(d, header.Handler) == sent.Topic)
	}

	var history []struct {
		N     int       `json:"n"`
		At    time.Time `json:"at"`
		Error string    `json:"error"`
	}
	is("history", json.Unmarshal([]byte(text(d, header.History)), &history) == nil && len(history) > 0)
	if len(history) > 0 {
		is("times of the history", history[0].At.Equal(first) && history[len(history)-1].At.Equal(last))
	}
	if f == fate.Never && !crashed {
		is(fmt.Sprintf("%d attempts, %d in the history", calls, len(history)), areAttempts(find(sent.Topic), calls,
			len(history), returned))
	}

	return problems
}

// areAttempts tells whether a message that has failed until the end can have failed so often. The
// broker keeps no history of what it brings back by itself. Where it counts returns, some of them
// can be attempts that nobody has made.
func areAttempts(topic Topic, calls, history int, returned bool) bool {
	fewest, most := attempts()
	if !topic.Strategy.ByBroker() {
		return calls >= fewest && calls <= most && history == calls
	}
	return calls >= fewest && (calls <= most || returned) && history >= 1 && history <= calls
}

func isExhausted(letter Letter) bool {
	return text(letter.Message, header.Reason) == string(retry.ReasonExhausted)
}

// changed tells what is not as it was sent.
func changed(p amqp091.Publishing, d amqp091.Delivery) []string {
	var problems []string
	for _, c := range []struct {
		what       string
		sent, come any
	}{
		{"body", string(p.Body), string(d.Body)},
		{"content type", p.ContentType, d.ContentType},
		{"content encoding", p.ContentEncoding, d.ContentEncoding},
		{"delivery mode", p.DeliveryMode, d.DeliveryMode},
		{"priority", p.Priority, d.Priority},
		{"correlation id", p.CorrelationId, d.CorrelationId},
		{"reply to", p.ReplyTo, d.ReplyTo},
		{"message id", p.MessageId, d.MessageId},
		{"timestamp", p.Timestamp.Unix(), d.Timestamp.Unix()},
		{"type", p.Type, d.Type},
		{"app id", p.AppId, d.AppId},
	} {
		if c.sent != c.come {
			problems = append(problems, fmt.Sprintf("%s: sent %.200q, got %.200q", c.what, fmt.Sprint(c.sent),
				fmt.Sprint(c.come)))
		}
	}
	for k, v := range p.Headers {
		if !reflect.DeepEqual(v, d.Headers[k]) {
			problems = append(problems, fmt.Sprintf("header %q: sent %#v, got %#v", k, v, d.Headers[k]))
		}
	}
	for k := range d.Headers {
		if _, own := p.Headers[k]; !own && !header.IsOwn(k) && !header.IsPoison(k) && !header.IsBroker(k) {
			problems = append(problems, fmt.Sprintf("header %q was not sent", k))
		}
	}

	return problems
}
