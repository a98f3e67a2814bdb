package doctor

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"strings"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/management"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// ctl is a rabbitmqctl command about the virtual host.
func (f Facts) ctl(command string, args ...string) string {
	option := "-p " + shell.Quote(f.VHost)
	if strings.HasPrefix(f.VHost, "-") { // it would be taken for an option
		option = "--vhost=" + shell.Quote(f.VHost)
	}
	return strings.Join(append([]string{"rabbitmqctl", command, option}, args...), " ")
}

// apply declares what is missing of a topic's plan, or of a ladder of Others if there is no topic.
func (f Facts) apply(t Topic) string {
	if t.Plan.Queue == "" {
		publish := "# publish a message with a delay: its publisher declares the ladder, at most 10 minutes after " +
			"the last time.\n# At once: start the publisher again, and publish"
		if f.Named != nil { // policies may use it
			publish += "\n# A ladder of the policy file: amqpretry topology apply, with one of its queues, declares " +
				"it as well"
		}
		return publish
	}
	return f.topology("apply", t)
}

// topology is a command about the topology of a topic.
func (f Facts) topology(command string, t Topic) string {
	var words []string
	if f.PolicyFile != "" {
		words = append(words, "--policies", shell.Quote(f.PolicyFile))
	}
	if f.Names.Shared != "" {
		words = append(words, "--shared-name", shell.Quote(f.Names.Shared))
	}
	target := t.Plan.Queue
	if t.Name != t.Plan.Queue {
		target = t.Name + "=" + t.Plan.Queue
	}
	return f.amqpretry("topology "+command, append(words, target)...)
}

// amqpretry is a command of this program for the same virtual host. The last word is quoted, as it is the name of a
// queue.
func (f Facts) amqpretry(command string, words ...string) string {
	line := []string{"amqpretry", command}
	if f.VHost != "/" || f.VHostByFlag {
		line = append(line, "--vhost="+shell.Quote(f.VHost))
	}
	last := len(words) - 1
	line = append(line, words[:last]...)
	if strings.HasPrefix(words[last], "-") {
		line = append(line, "--")
	}
	text := strings.Join(append(line, shell.Quote(words[last])), " ")
	if f.ByFlag { // it has a password
		return "# with the same --uri\n" + text
	}
	return text
}

// recreate deletes a queue and declares it as planned. A retry queue empties itself. A dead-letter queue is deleted by a
// person who has seen that it is empty: that command is a comment.
func (f Facts) recreate(o object) string {
	switch o.Role {
	case roleRetry:
		return f.topology("apply --recreate", o.Topic)
	case roleDelay, roleLanding:
		return f.redeclare(o)
	}
	queue := o.Topic.Plan.Queue
	purge := f.amqpretry("dlq purge", "--all", "--yes", "--undo", "dead-letters.jsonl", queue)
	restore := f.amqpretry("dlq import", queue) + " dead-letters.jsonl"
	if o.Role == roleUnroutable {
		// They have many targets: none of them is the main queue of all.
		purge = f.amqpretry("delays discard", "--all", "--yes", "--undo", "unroutable.jsonl", "--ladder", o.Ladder)
		restore = f.amqpretry("dlq import", "--dead-letter-queue", shell.Quote(o.Name), o.Name) + " unroutable.jsonl"
	}
	deletion := f.ctl("delete_queue", shell.Quote(o.Name))
	if o.Queue.Details.Value.Type == string(config.QueueTypeClassic) { // a quorum queue knows no conditions
		deletion += " --if-empty --if-unused"
	}
	return "# Stop its publishers and consumers. The undo file then has its messages:\n" +
		purge + " &&\n" +
		f.ctl("list_queues", "name", "messages") + "\n" +
		"# If it has 0 messages, delete it, declare it as planned, and put the messages back:\n" +
		commented(deletion, f.apply(o.Topic), restore)
}

// redeclare is for the queues of exact delays, whose messages nobody can take out: a person waits until they are gone.
func (f Facts) redeclare(o object) string {
	return "# Stop the services that use it, and wait until it is empty: deleting it discards its messages.\n" +
		f.amqpretry("delays stat", f.waiting(o)...) + "\n" +
		"# If it has 0 messages, delete it, and declare it as planned:\n" +
		commented(f.ctl("delete_queue", shell.Quote(o.Name)), f.apply(o.Topic))
}

// waiting are the words of a command that counts the messages in a queue of exact delays.
func (f Facts) waiting(o object) []string {
	if o.Topic.Plan.Queue != "" {
		return f.policies(o.Topic.Plan.Queue)
	}
	return []string{"--ladder", cmp.Or(o.Ladder, o.LandingLadder)}
}

// policies are the words of a command that take the policy file.
func (f Facts) policies(words ...string) []string {
	if f.PolicyFile == "" {
		return words
	}
	return append([]string{"--policies", shell.Quote(f.PolicyFile)}, words...)
}

// commented are commands for a person who has read what is above them.
func commented(commands ...string) string {
	return "#   " + strings.ReplaceAll(strings.Join(commands, "\n"), "\n", "\n#   ")
}

// noLimit is in bytes more than any queue gets. It stands in a policy that must say something.
const noLimit = 1_000_000_000_000_000

// ownPolicy is a policy of the broker for one queue that takes the place of another: with what that says but for some
// keys.
func (f Facts) ownPolicy(queue string, of management.Policy, operator bool, without map[string]bool) string {
	definition := map[string]any{}
	for key, value := range of.Definition {
		if !without[key] {
			definition[key] = value
		}
	}
	if len(definition) == 0 { // RabbitMQ takes none that is empty
		definition["max-length-bytes"] = noLimit
	}
	command := f.setPolicy(queue, definition, of.Priority+1)
	if operator {
		command = strings.Replace(command, "set_policy", "set_operator_policy", 1)
	}
	return command
}

// protect is the policy that keeps a main queue from dropping messages, with all else that the queue's policy says
// today.
func (f Facts) protect(o object) string {
	definition, priority := map[string]any{}, 100
	if p, found := f.policyOf(o.Queue.Details.Value); found {
		maps.Copy(definition, p.Definition)
		priority = max(priority, p.Priority+1)
	}
	var protection map[string]any
	wanted := topology.ProtectPolicy(f.VHost, o.Name, f.deadLetterQueue(o.Topic)).Definition
	if err := json.Unmarshal([]byte(wanted), &protection); err != nil {
		return "# " + err.Error() // impossible: it is JSON
	}
	maps.Copy(definition, protection)
	return f.setPolicy(o.Name, definition, priority)
}

func (f Facts) setPolicy(queue string, definition map[string]any, priority int) string {
	p := topology.ProtectPolicy(f.VHost, queue, "")
	if ladder := f.ladderOf(queue); ladder != "" { // one for all of its queues
		p.Name, p.Pattern = "amqpretry."+ladder, "^"+regexp.QuoteMeta(ladder+".")
	}
	p.Priority, p.Definition = priority, asJSON(definition)
	return p.SetCommand()
}

// policyOf is the user's policy that applies to a queue.
func (f Facts) policyOf(q management.Queue) (management.Policy, bool) {
	return named(f.Policies.Value, q.Policy)
}

func named(policies []management.Policy, name *string) (management.Policy, bool) {
	for _, p := range policies {
		if name != nil && p.Name == *name {
			return p, true
		}
	}
	return management.Policy{}, false
}

// deadLetterQueue is where a main queue's messages end; under the mode off the one that they would have.
func (f Facts) deadLetterQueue(t Topic) string {
	if t.Plan.DeadLetterQueue != "" {
		return t.Plan.DeadLetterQueue
	}
	return f.Names.WithDefaults().DeadLetterQueue(t.Plan.Queue)
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error() // impossible: texts and numbers
	}
	return string(text)
}
