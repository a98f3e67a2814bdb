package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
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
// What is in conflict with the plan comes first: nothing is declared before.
func (f Facts) apply(t Topic) string {
	if name := f.byHand(t); name != "" {
		return fmt.Sprintf("# nothing is declared while %q is not as planned: its fix declares this as well", name)
	}
	for _, x := range t.Plan.Exchanges {
		if f.Exchanges[x.Name].Conflict.Value != nil {
			return f.redeclareExchange(plannedExchange{x, t, ""})
		}
	}
	return f.declare(t)
}

// byHand is a queue that keeps a topic from being declared, and that only a person can recreate; ""
// if there is none.
func (f Facts) byHand(t Topic) string {
	var queues []topology.Queue
	if t.Plan.Ladder != nil {
		queues = t.Plan.Ladder.Shared().Queues
	}
	for _, q := range t.Plan.Queues {
		if q.Delay == 0 {
			queues = append(queues, q)
		}
	}
	for _, q := range queues {
		if f.Queues[q.Name].Conflict.Value != nil {
			return q.Name
		}
	}
	return ""
}

// declare declares what is missing, with no regard to what only a person can recreate.
func (f Facts) declare(t Topic) string {
	if t.Plan.Queue == "" {
		publish := "# publish a message with a delay: its publisher declares the ladder, at most 10 minutes after " +
			"the last time.\n# At once: start the publisher again, and publish"
		if f.Named != nil { // policies may use it
			publish += "\n# A ladder of the policy file: amqpretry topology apply, with one of its queues, declares " +
				"it as well"
		}
		return publish
	}
	command := "apply"
	if slices.ContainsFunc(t.Plan.Queues, func(q topology.Queue) bool {
		return q.Delay > 0 && f.Queues[q.Name].Conflict.Value != nil
	}) {
		command += " --recreate"
	}
	return f.topology(command, t)
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
	if !f.declares(t) {
		return f.byService(f.amqpretry("topology "+command, append(words, "--policies", "FILE", target)...), t)
	}
	return f.amqpretry("topology "+command, append(words, target)...)
}

// amqpretry is a command of this program for the same virtual host. The last word is quoted, as it
// is the name of a queue.
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

// recreate deletes a queue and declares it as planned. A retry queue empties itself. A dead-letter
// queue is deleted by a person who has seen that it is empty: that command is a comment.
func (f Facts) recreate(o object) string {
	switch o.Role {
	case roleRetry:
		return f.apply(o.Topic)
	case roleDelay, roleLanding:
		return f.redeclare(o)
	}
	queue := o.Topic.Plan.Queue
	file := shell.File("dead-letters", queue)
	purge := f.amqpretry("dlq purge", "--all", "--yes", "--undo", file, queue)
	restore := f.amqpretry("dlq import", queue) + " " + file
	if o.Role == roleUnroutable {
		// They have many targets: none of them is the main queue of all.
		file = shell.File("unroutable", o.Ladder)
		purge = f.amqpretry("delays discard", "--all", "--yes", "--undo", file, "--ladder", o.Ladder)
		restore = f.amqpretry("dlq import", "--dead-letter-queue", shell.Quote(o.Name), o.Name) + " " + file
	}
	deletion := f.ctl("delete_queue", shell.Quote(o.Name))
	if o.Queue.Details.Value.Type == amqp.QueueTypeClassic { // a quorum queue knows no conditions
		deletion += " --if-empty --if-unused"
	}
	return "# Stop its publishers and consumers. The undo file then has its messages:\n" +
		purge + " &&\n" +
		f.ctl("list_queues", "name", "messages") + "\n" +
		"# If it has 0 messages, delete it, declare it as planned, and put the messages back:\n" +
		commented(deletion, f.declare(o.Topic), restore)
}

// redeclareExchange deletes an exchange and declares it as planned, with its bindings. Where others
// may have bound something to it, a person looks first. Meanwhile deliveries whose copies the
// exchange is to route are held.
func (f Facts) redeclareExchange(x plannedExchange) string {
	name := func(text string) string {
		return `<<"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"/utf8>>`
	}
	// rabbitmqctl has no command for it
	deletion := "rabbitmqctl eval " + shell.Quote(fmt.Sprintf("ok = rabbit_exchange:delete(rabbit_misc:r(%s, "+
		"exchange, %s), false, <<\"amqpretry\">>).", name(f.VHost), name(x.Name)))
	bindings := f.Exchanges[x.Name].Bindings
	other := func(b httpapi.Binding) bool {
		return !slices.ContainsFunc(x.topic.Plan.Queues, func(q topology.Queue) bool { return q.Name == b.Queue })
	}
	foreign := !bindings.Known || x.ladder != "" || slices.ContainsFunc(bindings.Value, other)
	declare := f.declare(x.topic)
	if foreign || x.Shared || !f.declares(x.topic) || f.byHand(x.topic) != "" {
		return "# The type of an exchange cannot be changed. These are its bindings:\n" +
			f.ctl("list_bindings", "source_name", "destination_name", "routing_key") + "\n" +
			"# Note those of others, which are lost. Then delete the exchange, and declare it as planned:\n" +
			commented(deletion, declare)
	}
	return "# The type of an exchange cannot be changed: this deletes it, and declares it with its bindings\n" +
		deletion + " &&\n" + declare
}

// redeclare is for the queues of exact delays, whose messages nobody can take out: a person waits
// until they are gone.
func (f Facts) redeclare(o object) string {
	return "# Stop the services that use it, and wait until it is empty: deleting it discards its messages.\n" +
		f.amqpretry("delays stat", f.waiting(o)...) + "\n" +
		"# If it has 0 messages, delete it, and declare it as planned:\n" +
		commented(f.ctl("delete_queue", shell.Quote(o.Name)), f.declare(o.Topic))
}

// waiting are the words of a command that counts the messages in a queue of exact delays.
func (f Facts) waiting(o object) []string {
	if ladder := o.Topic.Plan.Ladder; ladder != nil && f.PolicyFile == "" {
		return []string{"--ladder", ladder.Name()}
	}
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

// emptyPolicy is the definition of a policy that says nothing: RabbitMQ accepts none without a key.
var emptyPolicy = fmt.Sprintf(`{"max-length-bytes":%d}`, int64(noLimit))

// policyFix returns the commands that take harmful keys from the policies of a queue, or of all
// queues of a ladder: one for the user's policies, one for the operator's. A second command for the
// same queues would undo the first. With protect, the user's policy also keeps a main queue from
// dropping messages. All other keys stay.
func (f Facts) policyFix(of []object, protect bool) string {
	user, userPriority := combined(of, f.Policies.Value, func(q httpapi.Queue) *string { return q.Policy })
	operator, operatorPriority := combined(of, f.OperatorPolicies.Value,
		func(q httpapi.Queue) *string { return q.OperatorPolicy })
	harmful := map[string]bool{}
	add := func(o object, q httpapi.Queue) {
		for _, w := range weaknesses(o, q, f.Version) {
			harmful[w.key] = harmful[w.key] || w.severity != Note
		}
	}
	protects := map[string]any{}
	if protect {
		userPriority = max(userPriority, 100)
		protects = f.protection(of[0])
		maps.Copy(user, protects)
	}
	both := together(user, operator)
	for _, o := range of {
		q := o.Queue.Details.Value
		if !protect {
			add(o, q)
		}
		// The policy of one queue is about to apply to others as well, and with protection a full
		// queue rejects.
		if q.Effective = both; o.Queue.Details.Known {
			add(o, q)
		}
	}

	ofUser := maps.Clone(harmful)
	maps.DeleteFunc(ofUser, func(key string, _ bool) bool { _, needed := protects[key]; return needed })
	var lines []string
	if drop(user, ofUser) || protect {
		lines = append(lines, f.setPolicy(of[0].Name, user, userPriority))
	}
	if drop(operator, harmful) {
		command := f.setPolicy(of[0].Name, operator, operatorPriority)
		lines = append(lines, strings.Replace(command, "set_policy", "set_operator_policy", 1))
	}
	if len(lines) == 0 {
		return f.ctl("list_policies") + "\n" + f.ctl("list_operator_policies")
	}
	fix := strings.Join(lines, " &&\n")
	if strings.Contains(fix, emptyPolicy) {
		fix = "# Nothing else is to be in the policy. RabbitMQ accepts no empty one, so it gets a limit that no " +
			"queue reaches:\n" + fix
	}
	return fix
}

// combined returns what the policies of queues say, and a priority above all of them. Where they
// differ, the policy with the highest priority wins.
func combined(of []object, policies []httpapi.Policy, name func(httpapi.Queue) *string) (map[string]any, int) {
	var all []httpapi.Policy
	for _, o := range of {
		p, found := named(policies, name(o.Queue.Details.Value))
		if found && !slices.ContainsFunc(all, func(other httpapi.Policy) bool { return other.Name == p.Name }) {
			all = append(all, p)
		}
	}
	slices.SortStableFunc(all, func(a, b httpapi.Policy) int { return cmp.Compare(a.Priority, b.Priority) })
	definition, priority := map[string]any{}, 0
	for i, p := range all {
		maps.Copy(definition, p.Definition)
		if i == len(all)-1 {
			priority = p.Priority + 1
		}
	}
	return definition, priority
}

// together is what applies under a user's and an operator's policy: of two numbers the smaller one.
func together(user, operator map[string]any) httpapi.Arguments {
	all := httpapi.Arguments(maps.Clone(user))
	for key, value := range operator {
		own, given := all[key].(int64)
		if n, isNumber := value.(int64); isNumber && given {
			value = min(own, n)
		}
		all[key] = value
	}
	return all
}

// drop deletes keys from a definition, and tells whether there were any.
func drop(definition map[string]any, keys map[string]bool) bool {
	before := len(definition)
	maps.DeleteFunc(definition, func(key string, _ any) bool { return keys[key] })
	return len(definition) < before
}

// protection is what a policy says that keeps a main queue from dropping messages, and gives it
// what its strategy needs.
func (f Facts) protection(o object) map[string]any {
	var definition httpapi.Arguments
	wanted := topology.ProtectPolicy(f.VHost, o.Name, f.deadLetterQueue(o.Topic))
	if policy, ok := o.Topic.Plan.MainPolicy(f.VHost); ok {
		wanted = policy
	}
	_ = json.Unmarshal([]byte(wanted.Definition), &definition) // it is JSON
	return definition
}

// onTop is a policy for a queue that adds keys, named like arguments and each followed by its
// value, to the one that it has.
func (f Facts) onTop(queue string, keysAndValues ...any) string {
	definition, priority := combined([]object{{Name: queue, Queue: f.Queues[queue]}}, f.Policies.Value,
		func(q httpapi.Queue) *string { return q.Policy })
	for pair := range slices.Chunk(keysAndValues, 2) {
		definition[strings.TrimPrefix(fmt.Sprint(pair[0]), "x-")] = pair[1]
	}

	return f.setPolicy(queue, definition, priority)
}

func (f Facts) setPolicy(queue string, definition map[string]any, priority int) string {
	p := topology.ProtectPolicy(f.VHost, queue, "")
	if ladder := f.ladderOf(queue); ladder != "" { // one for all of its queues
		p.Name, p.Pattern = "amqpretry."+ladder, "^"+regexp.QuoteMeta(ladder+".")
	}
	p.Priority, p.Definition = priority, asJSON(definition)
	if len(definition) == 0 {
		p.Definition = emptyPolicy
	}
	return p.SetCommand()
}

// policyOf is the user's policy that applies to a queue.
func (f Facts) policyOf(q httpapi.Queue) (httpapi.Policy, bool) {
	return named(f.Policies.Value, q.Policy)
}

func named(policies []httpapi.Policy, name *string) (httpapi.Policy, bool) {
	for _, p := range policies {
		if name != nil && p.Name == *name {
			return p, true
		}
	}
	return httpapi.Policy{}, false
}

// deadLetterQueue is where a main queue's messages end; under the mode off the one that they would
// have.
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
