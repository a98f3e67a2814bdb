package topology

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/internal/shell"
)

// protectedLimit is high enough for any number of shutdowns, and still ends a message that kills
// its consumers.
const protectedLimit = int64(1000)

// ProtectArguments are the arguments with which a new quorum main queue does not lose messages:
// what reaches the delivery limit goes to the dead-letter queue, and stays in the main queue until
// that has it.
func ProtectArguments(deadLetterQueue string) amqp.Table {
	arguments := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	for key, value := range protection(deadLetterQueue) {
		arguments["x-"+key] = value
	}
	return arguments
}

// protection is what a policy of the broker and the arguments of a queue have in common.
func protection(deadLetterQueue string) map[string]any {
	return map[string]any{
		// Never a queue with a TTL that leads back: the broker sees a cycle, and drops the message.
		"dead-letter-exchange":    "",
		"dead-letter-routing-key": deadLetterQueue,
		// At-least-once silently becomes at-most-once unless a full queue rejects what is
		// published.
		"dead-letter-strategy": "at-least-once",
		"overflow":             amqp.QueueOverflowRejectPublish,
		"delivery-limit":       protectedLimit,
	}
}

// BrokerPolicy is a policy of the broker for one queue. Only an operator can set it, and no client
// can see it.
type BrokerPolicy struct {
	// Vhost and Queue for which it is.
	Vhost, Queue string
	// Name of the policy, made of the queue's.
	Name string
	// Pattern matches the name of the queue and no other.
	Pattern  string
	Priority int
	// Definition in JSON.
	Definition string
}

// ProtectPolicy is the policy that does for a quorum queue that exists what [ProtectArguments] do
// for a new one.
//
// It does not apply to classic queues, which have no delivery limit: the broker leaves them without
// it.
func ProtectPolicy(vhost, queue, deadLetterQueue string) BrokerPolicy {
	return brokerPolicy(vhost, queue, protection(deadLetterQueue))
}

func brokerPolicy(vhost, queue string, keys map[string]any) BrokerPolicy {
	definition, _ := json.Marshal(keys) // strings and numbers
	return BrokerPolicy{
		Vhost:      vhost,
		Queue:      queue,
		Name:       "amqpretry." + inPattern(queue),
		Pattern:    "^" + inPattern(regexp.QuoteMeta(queue)) + "$",
		Priority:   100,
		Definition: inJSON(string(definition)),
	}
}

// MainPolicy is the policy that does for a quorum queue that exists what MainArguments do for a new
// one. ok is false for a strategy that cannot have it by a policy, as nobody could see that it is
// not there: cycle; and for copies, which need none.
func (p Plan) MainPolicy(vhost string) (policy BrokerPolicy, ok bool) {
	if !p.Strategy.CountsReturns() {
		return BrokerPolicy{}, false
	}
	definition := map[string]any{}
	for key, value := range p.MainArguments {
		if key != amqp.QueueTypeArg {
			definition[strings.TrimPrefix(key, "x-")] = value
		}
	}
	return brokerPolicy(vhost, p.Queue, definition), true
}

// SetCommand is the line that sets the policy, for any POSIX shell.
func (p BrokerPolicy) SetCommand() string {
	return command("set_policy", p.Vhost, "--priority", strconv.Itoa(p.Priority), "--apply-to", "queues",
		shell.Quote(p.Name), shell.Quote(p.Pattern), shell.Quote(p.Definition))
}

// ClearCommand is the line that takes the policy away.
func (p BrokerPolicy) ClearCommand() string {
	return command("clear_policy", p.Vhost, shell.Quote(p.Name))
}

// String returns the command that sets the policy, for an operator. Shell comments before it say
// what to check first.
func (p BrokerPolicy) String() string {
	return comment(
		"A queue has one policy: of all that match, the one with the highest priority. This one replaces the policy "+
			"that",
		"applies to the queue today. Look for it, put what it sets into this definition, and if its priority is "+
			strconv.Itoa(p.Priority),
		"or more, use a higher one here:",
		"  "+command("list_queues", p.Vhost, "name", "policy"),
		"  "+command("list_policies", p.Vhost),
	) + p.SetCommand()
}

// command puts a rabbitmqctl command together. A vhost that begins with a dash would be taken for
// an option.
func command(name, vhost string, args ...string) string {
	option := "-p " + shell.Quote(vhost)
	if strings.HasPrefix(vhost, "-") {
		option = "--vhost=" + shell.Quote(vhost)
	}
	return strings.Join(append([]string{"rabbitmqctl", name, option}, args...), " ")
}

// comment makes comments of the shell. A line break in a name does not end one. As some shells take
// pasted comments for commands, what is in them must mean nothing to a shell.
func comment(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString("# " + strings.NewReplacer("\n", " ", "\r", " ").Replace(line) + "\n")
	}
	return b.String()
}

// inPattern spells control characters as patterns do: no command line could carry a zero byte, and
// a terminal acts upon the others. The broker matches bytes.
func inPattern(s string) string {
	return spellControls(s, func(r rune) (spelled string) {
		for _, c := range []byte(string(r)) {
			spelled += fmt.Sprintf(`\x%02x`, c)
		}
		return spelled
	})
}

// inJSON spells those that the encoder leaves.
func inJSON(s string) string {
	return spellControls(s, func(r rune) string { return fmt.Sprintf(`\u%04x`, r) })
}

func spellControls(s string, spell func(rune) string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsControl(r) {
			b.WriteString(spell(r))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
