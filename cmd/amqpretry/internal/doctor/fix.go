package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// apply declares what is missing of a topic's plan, or of a ladder of Others if there is no topic.
// What is in conflict with the plan comes first: nothing is declared before.
func (f Facts) apply(t inspect.Topic) string {
	if name := f.byHand(t); name != "" {
		return f.says("arguments.by-hand", "name", name).Fix
	}
	for _, o := range t.Objects() {
		if o.Exchange != nil && f.Exchanges[o.Name].Conflict.Value != nil {
			return f.recreate(o)
		}
	}
	return f.declare(t)
}

// byHand is a queue that keeps a topic from being declared, and that only a person can recreate; ""
// if there is none.
func (f Facts) byHand(t inspect.Topic) string {
	var queues []topology.Queue
	if t.Plan.Ladder != nil {
		queues = t.Plan.Ladder.Shared().Queues
	}
	for _, q := range t.Plan.Queues {
		if q.Delay == 0 {
			queues = append(queues, q)
		}
	}
	i := slices.IndexFunc(queues, func(q topology.Queue) bool { return f.Queues[q.Name].Conflict.Value != nil })
	if i < 0 {
		return ""
	}
	return queues[i].Name
}

// declare declares what is missing, with no regard to what only a person can recreate.
func (f Facts) declare(t inspect.Topic) string {
	switch {
	case t.Plan.Queue == "" && f.Named != nil: // policies may use it
		return f.says("exists.named-by").Fix
	case t.Plan.Queue == "":
		return f.says("exists.published-by").Fix
	case slices.ContainsFunc(t.Plan.Queues, func(q topology.Queue) bool {
		return q.Delay > 0 && f.Queues[q.Name].Conflict.Value != nil
	}):
		return f.topology("apply --recreate", t)
	default:
		return f.topology("apply", t)
	}
}

// topology is a command about the topology of a topic, or what declares it if no command can.
func (f Facts) topology(command string, t inspect.Topic) string {
	words := cli.TopologyFlags(f.PolicyFile, f.Names.Shared)
	if f.declares(t) {
		return f.AMQPRetry("topology "+command, append(words, t.Argument())...)
	}
	line := f.AMQPRetry("topology "+command, append(words, "--policies", "FILE", t.Argument())...)
	return f.says("exists.declared-by", "queue", t.Plan.Queue, "line", cli.Commented(line)).Fix
}

// declares tells whether a command of this program knows what a topic needs: from a policy file, or
// because it has all of the default policy.
func (f Facts) declares(t inspect.Topic) bool {
	if f.PolicyFile != "" {
		return true
	}
	plan, err := topology.New(t.Plan.Queue, config.Policy{}, f.Names)
	return err == nil && reflect.DeepEqual(plan, t.Plan)
}

// noPolicies is why a check says less without them.
const noPolicies = "no policies were given, so doctor takes the delays of a queue from the retry queues that it has: " +
	"pass --policies with a file. policyfile.Format writes policies of Go to one"

// onlyPoliciesTell is the finding about what cannot be known without them.
func (f Facts) onlyPoliciesTell(what string) []Finding {
	if f.PolicyFile != "" || len(f.Topics) == 0 {
		return nil
	}
	return f.cannotSee(blind{noPolicies: nil}, what)
}

// recreate deletes an object and declares it as planned. A retry queue empties itself. A
// dead-letter queue is deleted by a person who has seen that it is empty: that command is a
// comment. Nobody can take messages out of the queues of exact delays: a person waits until they
// are gone.
func (f Facts) recreate(o inspect.Object) string {
	deletion, declare := f.Ctl("delete_queue", shell.Quote(o.Name)), f.declare(o.Topic)
	switch o.Role {
	case inspect.RoleExchange:
		return f.redeclareExchange(o)
	case inspect.RoleRetry:
		return f.apply(o.Topic)
	case inspect.RoleDelay, inspect.RoleLanding:
		return f.says("arguments.wait", "stat", f.AMQPRetry("delays stat", f.waiting(o)...),
			"lines", cli.Commented(deletion, declare)).Fix
	}
	queue := o.Topic.Plan.Queue
	file := shell.File("dead-letters", queue)
	purge := f.AMQPRetry("dlq purge", "--all", "--yes", "--undo", file, queue)
	restore := f.AMQPRetry("dlq import", queue) + " " + file
	if o.Role == inspect.RoleUnroutable {
		// They have many targets: none of them is the main queue of all.
		file = shell.File("unroutable", o.Ladder)
		purge = f.AMQPRetry("delays unroutable discard", "--all", "--yes", "--undo", file, "--ladder", o.Ladder)
		restore = f.AMQPRetry("dlq import", "--dead-letter-queue", shell.Quote(o.Name), o.Name) + " " + file
	}
	if o.Is.Details.Value.Type == amqp.QueueTypeClassic { // a quorum queue knows no conditions
		deletion += " --if-empty --if-unused"
	}
	return f.says("arguments.recreate", "purge", purge, "lines", cli.Commented(deletion, declare, restore)).Fix
}

// redeclareExchange deletes an exchange and declares it as planned, with its bindings. Where others
// may have bound something to it, a person looks first. Meanwhile deliveries whose copies the
// exchange is to route are held.
func (f Facts) redeclareExchange(o inspect.Object) string {
	name := func(text string) string {
		return `<<"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"/utf8>>`
	}
	// rabbitmqctl has no command for it
	deletion := "rabbitmqctl eval " + shell.Quote(fmt.Sprintf("ok = rabbit_exchange:delete(rabbit_misc:r(%s, "+
		"exchange, %s), false, <<\"amqpretry\">>).", name(f.VHost), name(o.Name)))
	bindings, declare := f.Exchanges[o.Name].Bindings, f.declare(o.Topic)
	others := slices.ContainsFunc(bindings.Value, func(b httpapi.Binding) bool {
		return !slices.ContainsFunc(o.Topic.Plan.Queues, func(q topology.Queue) bool { return q.Name == b.Queue })
	})
	if !bindings.Known || others || o.Ladder != "" || o.Exchange.Shared || !f.declares(o.Topic) ||
		f.byHand(o.Topic) != "" {
		return f.says("arguments.delete-exchange", "lines", cli.Commented(deletion, declare)).Fix
	}
	return f.says("arguments.redeclare-exchange", "deletion", deletion, "declare", declare).Fix
}

// waiting are the words of a command that counts the messages in a queue of exact delays.
func (f Facts) waiting(o inspect.Object) []string {
	ladder := o.Topic.Plan.Ladder
	switch {
	case ladder != nil && f.PolicyFile == "":
		return []string{"--ladder", ladder.Name()}
	case o.Topic.Plan.Queue != "":
		return append(cli.TopologyFlags(f.PolicyFile, ""), o.Topic.Plan.Queue)
	default:
		return []string{"--ladder", cmp.Or(o.Ladder, o.LandingLadder)}
	}
}

// noLimit is in bytes more than any queue gets. It stands in a policy that must say something.
const noLimit = 1_000_000_000_000_000

// emptyPolicy is the definition of a policy that says nothing: RabbitMQ accepts none without a key.
var emptyPolicy = fmt.Sprintf(`{"max-length-bytes":%d}`, int64(noLimit))

// policyFix returns the commands that take harmful keys from the policies of a queue, or of all
// queues of a ladder: one for the user's policies, one for the operator's. A second command for the
// same queues would undo the first. With protect, the user's policy also keeps a main queue from
// dropping messages. All other keys stay.
func (f Facts) policyFix(of []inspect.Object, protect bool) string {
	user, userPriority := combined(of, f.Policies.Value, func(q httpapi.Queue) *string { return q.Policy })
	operator, operatorPriority := combined(of, f.OperatorPolicies.Value,
		func(q httpapi.Queue) *string { return q.OperatorPolicy })
	harmful := map[string]bool{}
	add := func(o inspect.Object, q httpapi.Queue) {
		for _, w := range f.weaknesses(o, q) {
			harmful[w.key] = harmful[w.key] || w.isHarmful()
		}
	}
	protects := map[string]any{}
	if protect {
		userPriority = max(userPriority, 100)
		protects = f.protection(of[0])
		maps.Copy(user, protects)
	}
	both := inspect.Together(user, operator)
	for _, o := range of {
		q := o.Is.Details.Value
		if !protect {
			add(o, q)
		}
		// The policy of one queue is about to apply to others as well, and with protection a full
		// queue rejects.
		if q.Effective = both; o.Is.Details.Known {
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
		return f.Ctl("list_policies") + "\n" + f.Ctl("list_operator_policies")
	}
	fix := strings.Join(lines, " &&\n")
	if strings.Contains(fix, emptyPolicy) {
		return f.says("policies.empty", "fix", fix).Fix
	}
	return fix
}

// combined returns what the policies of queues say, and a priority above all of them. Where they
// differ, the policy with the highest priority wins.
func combined(of []inspect.Object, policies []httpapi.Policy, name func(httpapi.Queue) *string) (map[string]any, int) {
	var all []httpapi.Policy
	for _, o := range of {
		p, found := named(policies, name(o.Is.Details.Value))
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

// drop deletes keys from a definition, and tells whether there were any.
func drop(definition map[string]any, keys map[string]bool) bool {
	before := len(definition)
	maps.DeleteFunc(definition, func(key string, _ any) bool { return keys[key] })
	return len(definition) < before
}

// protection is what a policy says that keeps a main queue from dropping messages, and gives it
// what its strategy needs.
func (f Facts) protection(o inspect.Object) map[string]any {
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
	definition, priority := combined([]inspect.Object{{Name: queue, Is: f.Queues[queue]}}, f.Policies.Value,
		func(q httpapi.Queue) *string { return q.Policy })
	for pair := range slices.Chunk(keysAndValues, 2) {
		definition[strings.TrimPrefix(fmt.Sprint(pair[0]), "x-")] = pair[1]
	}

	return f.setPolicy(queue, definition, priority)
}

func (f Facts) setPolicy(queue string, definition map[string]any, priority int) string {
	p := topology.ProtectPolicy(f.VHost, queue, "")
	if ladder := f.LadderOf(queue); ladder != "" { // one for all of its queues
		p.Name, p.Pattern = "amqpretry."+ladder, "^"+regexp.QuoteMeta(ladder+".")
	}
	p.Priority, p.Definition = priority, asJSON(definition)
	if len(definition) == 0 {
		p.Definition = emptyPolicy
	}
	return p.SetCommand()
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
func (f Facts) deadLetterQueue(t inspect.Topic) string {
	if t.Plan.DeadLetterQueue != "" {
		return t.Plan.DeadLetterQueue
	}
	return f.Names.WithDefaults().DeadLetterQueue(t.Plan.Queue)
}
