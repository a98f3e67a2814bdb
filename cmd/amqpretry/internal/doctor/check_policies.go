package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

// weakness is a key of a policy that takes something from a queue.
type weakness struct {
	key      string
	severity Severity
	means    string
	// meansOfAll is Finding.meansOfAll.
	meansOfAll string
	// ofStrategy tells that the check of strategies reports it.
	ofStrategy bool
}

func lookPolicies(f Facts) []Finding {
	groups := map[string][]object{} // by queue; by ladder, as the fix is one policy for all of its queues
	for _, o := range f.objects() {
		of := cmp.Or(o.Ladder, o.Name)
		groups[of] = append(groups[of], o)
	}
	fixes := map[string]string{}
	fix := func(o object, q httpapi.Queue) string {
		of := cmp.Or(o.Ladder, o.Name)
		if _, known := fixes[of]; !known {
			if o.Role == roleMain {
				fixes[of] = f.mainPolicyFix(o, q)
			} else {
				fixes[of] = f.policyFix(groups[of], false)
			}
		}
		return fixes[of]
	}
	return f.withPolicies("policies of the broker", func(o object, q httpapi.Queue) []Finding {
		var found []Finding
		for _, w := range weaknesses(o, q, f.Version) {
			if w.ofStrategy {
				continue
			}
			finding := Finding{Severity: w.severity, Means: w.means, meansOfAll: w.meansOfAll,
				Found: fmt.Sprintf("%s: %v, from the %s", w.key, q.Effective[w.key], f.sourceOf(q, w.key))}
			if w.severity != Note { // which is as its owner may want it
				finding.Fix = fix(o, q)
			}
			found = append(found, finding)
		}
		return found
	})
}

// weaknesses judges what the policies say of a queue.
func weaknesses(o object, q httpapi.Queue, version string) []weakness {
	in := effective(q)
	var all []weakness
	found := func(key string, severity Severity, means string) {
		if _, set := q.Effective[key]; set {
			all = append(all, weakness{key: key, severity: severity, means: means})
		}
	}
	number := func(key string) int64 { n, _ := q.Effective[key].(int64); return n }
	dropsHead := dropsHead(in)

	switch o.Role {
	case roleLanding:
		found("expires", Problem, "the broker deletes the queue after that time without a consumer, and then messages "+
			"that are due go to the queue for unroutable messages. Landing queues never have consumers")
	case roleRetry, roleDelay:
		found("expires", Problem, expires(o))
		if ttl := number("message-ttl"); ttl < o.Planned.Delay.Milliseconds() {
			const why = ": the smaller value of policy and argument applies"
			found("message-ttl", Problem, fmt.Sprintf("messages return after %d ms instead of %s", ttl,
				config.FormatDelay(o.Planned.Delay))+why)
			if last := len(all) - 1; o.Ladder != "" && last >= 0 && all[last].key == "message-ttl" {
				all[last].meansOfAll = fmt.Sprintf("messages return after %d ms instead of the time that the name of "+
					"the queue ends in", ttl) + why
			}
		}
		if q.Type == amqp.QueueTypeQuorum && dropsHead {
			found("overflow", Problem, "the queue returns messages at most once instead of at least once. Messages "+
				"that it had not returned were deleted")
		}
		if _, own := q.Arguments["x-dead-letter-routing-key"]; !own {
			found("dead-letter-routing-key", Problem, rerouted(o))
		}
		if lowersDeliveryLimit(q, version) {
			found("delivery-limit", Problem, returnedThatOften(version)+"return at once instead of after their delay")
		}
	case roleDeadLetter, roleUnroutable:
		found("expires", Problem, expires(o))
		found("message-ttl", Problem, "the broker deletes messages at that age, read or unread")
		if lowersDeliveryLimit(q, version) {
			found("delivery-limit", Problem, returnedThatOften(version)+"are deleted")
		}
	case roleMain:
		found("expires", Problem, expires(o))
		found("message-ttl", Warning, "the queue removes messages that are not handled in time. Without a "+
			"dead-letter exchange they are lost")
		if q.Type == amqp.QueueTypeQuorum && in["x-dead-letter-strategy"] == "at-least-once" && dropsHead {
			found("overflow", Problem, "the queue dead-letters at most once instead of at least once, so messages "+
				"that reach the delivery limit can be lost")
		}
	}
	if o.Role == roleMain {
		own := strategyWeaknesses(o, q)
		all = append(own, slices.DeleteFunc(all, func(w weakness) bool {
			return slices.ContainsFunc(own, func(other weakness) bool { return other.key == w.key })
		})...)
	}
	severity, means := whenFull(o.Role, dropsHead)
	for _, key := range []string{"max-length", "max-length-bytes"} {
		if number(key) < noLimit {
			found(key, severity, means)
		}
	}
	return all
}

// lowersDeliveryLimit tells of a policy whose limit is below the queue's own. A negative one is
// none, from 4.0 on.
func lowersDeliveryLimit(q httpapi.Queue, version string) bool {
	own, _ := q.Arguments["x-delivery-limit"].(int64)
	limit, _ := q.Effective["delivery-limit"].(int64)
	return limit < own && (limit >= 0 || !rabbitmq.LimitsByDefault(version))
}

func returnedThatOften(version string) string {
	const lower = "the lower value of policy and argument applies: messages that "
	if rabbitmq.CountsFailuresOnly(version) {
		return lower + "were in flight to crashed consumers that often, or that consumers rejected with requeue " +
			"that often, "
	}
	return lower + "a consumer or a browser of messages has returned that often "
}

// expires says what it means that the broker deletes an unused queue.
func expires(o object) string {
	const means = "the broker deletes the queue after that time without a consumer, with all its messages"
	switch {
	case o.Ladder != "":
		return means + ". Queues of a ladder have no consumers"
	case o.Role == roleRetry:
		return means + ". Retry queues never have consumers"
	default:
		return means
	}
}

// rerouted says what it means that a policy sets the routing key of what a queue hands on.
func rerouted(o object) string {
	switch ladder, err := topology.ParseLadderName(o.Ladder); {
	case o.Ladder == "" || err != nil:
		return "messages go there after their delay, instead of to the queue where they failed"
	case o.Planned.Arguments["x-dead-letter-exchange"] == ladder.Delivery():
		return "messages of level 0 lose their target: after their delay they go to the queue for unroutable messages"
	default:
		return "messages above level 0 stay in their queue: the level below does not route that key"
	}
}

// droppedUnhandled is what it means that a main queue drops its oldest messages.
const droppedUnhandled = "a full queue removes its oldest messages unhandled, although the broker has confirmed " +
	"them to their publishers. Without a dead-letter exchange they are lost"

// whenFull says what a length limit of a queue means. All services share the queues of a ladder:
// one queue that rejects messages stops the queues before it.
func whenFull(of role, dropsHead bool) (Severity, string) {
	switch {
	case of == roleMain && dropsHead:
		return Warning, droppedUnhandled
	case of == roleMain:
		return Note, "a full queue rejects messages, so retries return late, when there is room"
	case of == roleRetry && dropsHead:
		return Problem, "a full queue returns its oldest messages before their delay is over"
	case of == roleRetry:
		return Warning, "a full queue rejects copies, so failed messages stay unacknowledged until there is room"
	case of == roleDeadLetter && dropsHead:
		return Problem, "a full queue deletes its oldest dead letters"
	case of == roleDeadLetter:
		return Warning, "a full queue rejects dead letters, so failed messages stay unacknowledged until there is room"
	case of == roleLanding && dropsHead:
		return Problem, "a full queue dead-letters at most once, so messages are lost while the main queue accepts none"
	case of == roleLanding:
		return Problem, "a full queue takes none from the ladder. After 32 such messages a level of the ladder stops " +
			"for all its targets"
	case of == roleUnroutable && dropsHead:
		return Problem, "a full queue deletes its oldest messages: messages that no target takes are lost"
	case of == roleUnroutable:
		return Problem, "a full queue takes none from the ladder. After 32 messages that no target takes, a queue of " +
			"the ladder stops for all services"
	case dropsHead: // of a ladder, as what follows
		return Problem, "a full queue hands on its oldest messages before their delay is over, at most once"
	default:
		return Problem, "a full queue takes none from the levels above it. After 32 such messages a queue there " +
			"stops for all services. The queue also rejects copies, so failed messages stay unacknowledged"
	}
}

// limited says what the limit means that a queue has among its arguments; empty if it has none.
func limited(o object) string {
	details, conflict := o.Queue.Details, o.Queue.Conflict.Value
	limits := []string{"x-max-length", "x-max-length-bytes"}
	has := conflict != nil && slices.Contains(limits, conflict.Argument)
	for _, argument := range limits {
		n, set := details.Value.Arguments[argument].(int64)
		has = has || set && n < noLimit
	}
	if !has {
		return ""
	}
	_, rejects := whenFull(o.Role, false)
	_, drops := whenFull(o.Role, true)
	switch {
	case !details.Known:
		return fmt.Sprintf(". With reject-publish %s. With drop-head %s", rejects, drops)
	case dropsHead(effective(details.Value)):
		return ". " + drops
	default:
		return ". " + rejects
	}
}

// dropsHead tells whether a full queue with these arguments makes room.
func dropsHead(arguments amqp.Table) bool {
	return arguments[amqp.QueueOverflowArg] == nil || arguments[amqp.QueueOverflowArg] == "drop-head"
}

// sourceOf names the policies that say something of a queue.
func (f Facts) sourceOf(q httpapi.Queue, key string) string {
	var sources []string
	if p, known := named(f.OperatorPolicies.Value, q.OperatorPolicy); known && p.Definition[key] != nil {
		sources = append(sources, fmt.Sprintf("operator policy %q", p.Name))
	}
	if p, known := f.policyOf(q); known && p.Definition[key] != nil {
		sources = append(sources, fmt.Sprintf("policy %q", p.Name))
	}
	if len(sources) == 0 {
		return "policies of the broker"
	}
	return strings.Join(sources, " and the ")
}
