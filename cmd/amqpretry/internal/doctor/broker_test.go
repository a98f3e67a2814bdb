package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/inspect"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/commandtest"
)

const password = "s3cret:/pa%55"

// lab is a virtual host in which things are made wrong, a shell in which commands that fix run, and
// the policies.
type lab struct {
	t          *testing.T
	broker     *brokertest.Broker
	vhost      string
	connection *amqp.Connection
	version    string
	// uri and api have a user and a password that must never be printed.
	uri, api string
	// policies is the name of a file with the policies of text.
	policies, text string
	bin            string
}

const policyFile = `default:
  delays: [1m, 2m]
topics:
  stuck: {delays: [200ms]}
  classic-retry: {delays: [1m], classic_queues: true}
  shared-*: {delays: [4m], strategy: shared}
`

// rabbitmqctl is that of the broker.
const rabbitmqctl = `#!/bin/sh
'%s' ctl '%s' "$@"
`

// Everything that doctor finds on brokers is found on one, in a virtual host for each test: a
// broker costs seconds.
func TestDoctor_OwnBroker(t *testing.T) {
	t.Parallel()
	broker := brokertest.StartWithManagement(t)
	bin := t.TempDir()
	commandtest.Build(t, bin)
	script, err := filepath.Abs("../../../../scripts/broker")
	require.NoError(t, err)
	ctl := fmt.Sprintf(rabbitmqctl, script, broker.Dir)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "rabbitmqctl"), []byte(ctl), 0o755))

	(&lab{t: t, broker: broker, vhost: "/"}).user("doctor", "administrator", ".*", ".*", ".*")
	t.Run("in virtual hosts", func(t *testing.T) {
		for vhost, test := range map[string]func(*lab){
			"/": testFindsAndFixes, "it's strategies": testStrategies, "it's exact delays": testExactDelays,
			"it's delayed publishing": testDelayedPublishing, "it's policies": testFixesOfPolicies,
			"it's permissions on a ladder": testPermissionsOnALadder,
			"cut":                          testCutConnections, "interrupted": testInterrupts,
			"just now": testChangedJustNow, "without policies": testWithoutPolicies,
		} {
			t.Run(vhost, func(t *testing.T) { t.Parallel(); test(newLab(t, broker, vhost, bin)) })
		}
	})
	t.Run("alarm", func(t *testing.T) { newLab(t, broker, "alarm", bin).alarm() })
}

func newLab(t *testing.T, broker *brokertest.Broker, vhost, bin string) *lab {
	l := &lab{t: t, broker: broker, bin: bin, vhost: vhost}
	broker.API(http.MethodPut, nil, "vhosts", vhost)
	l.permit("doctor", ".*", ".*", ".*")
	l.uri, l.api = l.as("doctor"), asUser(t, broker.ManagementURL, "doctor")

	l.policies = filepath.Join(t.TempDir(), "it's retry.yaml")
	l.write(policyFile)

	var err error
	l.connection, err = amqp.Dial(l.uri)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.connection.Close() })
	l.version, _ = l.connection.Properties["version"].(string)
	return l
}

// put sets something of the virtual host.
func (l *lab) put(kind, name string, body any) {
	l.t.Helper()
	l.broker.API(http.MethodPut, body, kind, l.vhost, name)
}

// get reads what the virtual host has of a kind.
func (l *lab) get(kind string, name ...string) string {
	l.t.Helper()
	return l.broker.API(http.MethodGet, nil, append([]string{kind, l.vhost}, name...)...)
}

// user makes one with these permissions in the virtual host.
func (l *lab) user(name, tags, configure, write, read string) {
	l.t.Helper()
	l.broker.API(http.MethodPut, map[string]string{"password": password, "tags": tags}, "users", name)
	l.permit(name, configure, write, read)
}

func (l *lab) permit(user, configure, write, read string) {
	l.t.Helper()
	l.put("permissions", user, map[string]string{"configure": configure, "write": write, "read": read})
}

// policy sets one, or an operator policy.
func (l *lab) policy(kind, name, pattern, definition string, priority int) {
	l.t.Helper()
	l.put(kind, name, map[string]any{"pattern": pattern, "definition": json.RawMessage(definition),
		"priority": priority, "apply-to": "queues"})
}

// write writes the policies.
func (l *lab) write(text string) {
	l.t.Helper()
	l.text = text
	require.NoError(l.t, os.WriteFile(l.policies, []byte(text), 0o600))
}

func (l *lab) as(user string) string {
	return strings.TrimSuffix(asUser(l.t, l.broker.URI, user), "/") + "/" + url.PathEscape(l.vhost)
}

func asUser(t *testing.T, address, user string) string {
	u, err := url.Parse(address)
	require.NoError(t, err)
	u.User = url.UserPassword(user, password)
	return u.String()
}

func (l *lab) do(f func(*amqp.Channel) error) {
	l.t.Helper()
	ch, err := l.connection.Channel()
	require.NoError(l.t, err)
	defer ch.Close()
	require.NoError(l.t, f(ch))
}

func (l *lab) declare(queue string, arguments amqp.Table) {
	l.t.Helper()
	l.do(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, arguments)
		return err
	})
}

// topic declares a main queue, and all that its policy says.
func (l *lab) topic(name string, arguments amqp.Table) topology.Plan {
	l.t.Helper()
	l.declare(name, arguments)
	plan := l.plan(name)
	l.do(func(ch *amqp.Channel) error { return plan.Declare(ch) })
	return plan
}

// plan is that of a main queue.
func (l *lab) plan(name string) topology.Plan {
	l.t.Helper()
	policies, err := policyfile.Parse([]byte(l.text))
	require.NoError(l.t, err)
	plan, err := topology.New(name, policies.For(name), topology.Names{})
	require.NoError(l.t, err)
	return plan
}

func (l *lab) protected(name string) topology.Plan {
	l.t.Helper()
	return l.topic(name, topology.ProtectArguments(name+".dlq"))
}

func (l *lab) deleteQueue(name string) {
	l.do(func(ch *amqp.Channel) error { _, err := ch.QueueDelete(name, false, false, false); return err })
}

func (l *lab) publish(queue string) {
	l.do(func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		c, err := ch.PublishWithDeferredConfirmWithContext(l.t.Context(), "", queue, true, false,
			amqp.Publishing{Body: []byte("x"), DeliveryMode: amqp.Persistent})
		if err != nil {
			return err
		}
		if confirmed, err := c.WaitContext(l.t.Context()); err != nil || !confirmed {
			return errors.Join(err, errors.New("not confirmed"))
		}
		return nil
	})
}

// definitions are all that the virtual host has, but for the name of the file's writer.
func (l *lab) definitions() string {
	l.t.Helper()
	return l.get("definitions")
}

type verdict struct {
	code     int
	out, err string
	findings []Finding
}

// doctor runs the command. Nothing that it prints may have the password.
func (l *lab) doctor(env map[string]string, args ...string) verdict {
	l.t.Helper()
	var out, err bytes.Buffer
	s := &cli.Session{In: strings.NewReader(""), Out: &out, Err: &err, Now: time.Now, Getenv: func(name string) string {
		return env[name]
	}}
	code := cli.Run(l.t.Context(), s, append([]string{"doctor"}, args...), Command)
	v := verdict{code: code, out: out.String(), err: err.String()}
	for _, form := range []string{password, url.QueryEscape(password), url.PathEscape(password),
		url.UserPassword("", password).String()} {
		assert.NotContains(l.t, v.out+v.err, form)
	}
	if slices.Contains(args, "--json") && out.Len() > 0 {
		var answer struct{ Findings []Finding }
		require.NoError(l.t, json.Unmarshal(out.Bytes(), &answer), v.out)
		v.findings = answer.Findings
	}
	return v
}

// unread is the exit code of a doctor whose output nobody reads.
func (l *lab) unread(queues ...string) int {
	l.t.Helper()
	reader, writer := io.Pipe()
	require.NoError(l.t, reader.Close())
	env := map[string]string{cli.EnvURI: l.uri, cli.EnvManagement: l.api}
	s := &cli.Session{In: strings.NewReader(""), Out: writer, Err: io.Discard, Now: time.Now,
		Getenv: func(name string) string { return env[name] }}

	return cli.Run(l.t.Context(), s, append([]string{"doctor", "--policies", l.policies}, queues...), Command)
}

func (l *lab) full(args ...string) verdict {
	l.t.Helper()
	v := l.doctor(map[string]string{cli.EnvURI: l.uri, cli.EnvManagement: l.api},
		append([]string{"--json", "--policies", l.policies}, args...)...)
	require.Empty(l.t, v.err)
	return v
}

func (l *lab) amqpOnly(args ...string) verdict {
	l.t.Helper()
	return l.doctor(map[string]string{cli.EnvURI: l.uri}, append([]string{"--json", "--policies", l.policies},
		args...)...)
}

// run runs a fix as somebody would who pastes it.
func (l *lab) run(fix string) {
	l.t.Helper()
	cmd := exec.Command("sh", "-c", fix)
	cmd.Dir = filepath.Dir(l.policies) // an empty one but for them
	cmd.Env = append(os.Environ(), "PATH="+l.bin+":"+os.Getenv("PATH"), "AMQP_URI="+l.uri, "AMQP_MANAGEMENT_URL="+l.api)
	out, err := cmd.CombinedOutput()
	require.NoError(l.t, err, "%s\n%s", fix, out)
}

func find(findings []Finding, check, object, part string) (Finding, bool) {
	i := slices.IndexFunc(findings, func(f Finding) bool {
		return f.Check == check && strings.Contains(f.Object, object) && f.Severity != OK &&
			strings.Contains(f.Found, part)
	})
	if i < 0 {
		return Finding{}, false
	}
	return findings[i], true
}

// Everything that is really wrong on a broker is found, and the commands that are told fix it.
func testFindsAndFixes(l *lab) {
	t := l.t
	l.protected("healthy")
	l.publish("healthy")
	l.publish("healthy")
	queues := []string{"healthy"}
	for _, w := range wrongs {
		w.make(l)
		queues = append(queues, w.queue)
	}
	here := func(w wrong) bool { return w.on == nil || w.on(l.version) }

	var v verdict
	missing := func() (names []string) {
		for _, w := range wrongs {
			f, found := find(v.findings, w.check, w.object, w.found)
			if found != here(w) || found && f.Severity != w.severity {
				names = append(names, w.queue)
			}
		}
		return names
	}
	await.Until(t, func() bool { // statistics are up to 10 s old, more on a busy machine
		v = l.full(queues...)
		if left := missing(); len(left) > 0 {
			t.Logf("not found yet: %q", left)
		}
		return len(missing()) == 0 && len(unseenOf(v.findings)) == 0
	}, "everything that is wrong is found")
	definitions := l.definitions() // now: RabbitMQ 3.10 leaves out queues that were declared just before
	v = l.full(queues...)
	assert.Empty(t, unseenOf(v.findings))
	assert.Equal(t, cli.ExitFound, v.code)
	assert.Equal(t, cli.ExitFound, l.unread(queues...), "also for who reads the exit code only")
	assert.Equal(t, inOrder(t, definitions), inOrder(t, l.definitions()), "it has changed nothing")
	for _, f := range v.findings {
		if strings.Contains(f.Object, `"healthy`) {
			assert.Equal(t, Note, f.Severity, "%+v", f)
		}
	}

	l.do(func(ch *amqp.Channel) error { // nobody has looked at the messages
		for range 2 {
			d, ok, err := ch.Get("healthy", true)
			if err != nil {
				return err
			}
			assert.True(t, ok)
			assert.False(t, d.Redelivered)
			assert.NotContains(t, []any{int64(1), int64(2)}, d.Headers["x-delivery-count"])
			assert.NotContains(t, d.Headers, "x-acquired-count")
		}
		return nil
	})

	t.Run("over AMQP alone", func(t *testing.T) {
		over := l.amqpOnly(queues...)
		for _, w := range wrongs {
			f, found := find(over.findings, w.check, w.object, w.found)
			assert.Equal(t, w.amqp, found, "%s: %+v", w.queue, f)
		}
		for _, check := range []string{"nodes", "policies", "bindings", "delivery-limit", "dead-letter-target",
			"stuck"} {
			assert.Contains(t, unseenOf(over.findings), check)
		}
	})

	var fixed []wrong
	for _, w := range wrongs {
		if w.fixes && here(w) {
			fixed = append(fixed, w)
		}
	}
	assert.GreaterOrEqual(t, len(fixed), 25)
	l.paste(queues, fixed)
	v = l.full(queues...)
	for _, w := range fixed {
		if f, found := find(v.findings, w.check, w.object, ""); found && f.Severity != Note {
			assert.Fail(t, "still found", "%s: %s", w.queue, f.Found)
		}
	}
	// A fix takes away what is wrong and leaves the rest.
	assert.Contains(t, l.get("operator-policies"), `{"max-length-bytes":1000000000000000}`)
	assert.Contains(t, l.get("vhost-limits"), "max-connections")
	assert.Contains(t, l.get("policies"), `"max-length":100000`)

	t.Run("permissions", l.withoutPermissions)
	t.Run("unreachable", func(t *testing.T) {
		v := l.doctor(map[string]string{cli.EnvURI: l.as("nobody-known")}, "healthy")
		assert.Equal(t, cli.ExitFailed, v.code)
		v = l.doctor(map[string]string{cli.EnvURI: l.uri, cli.EnvManagement: "http://x:" + url.QueryEscape(password) +
			"@127.0.0.1:1"}, "--policies", l.policies, "healthy")
		assert.Equal(t, cli.ExitOK, v.code, v.out)
		assert.Equal(t, 1, strings.Count(v.out, "no answer"), v.out)
	})
}

func unseenOf(findings []Finding) []string {
	var checks []string
	for _, f := range findings {
		if f.Severity == Unseen {
			checks = append(checks, f.Check)
		}
	}
	return checks
}

// inOrder are definitions, in an order of their own: RabbitMQ 4.3 changes that of its lists.
func inOrder(t *testing.T, definitions string) (all []string) {
	var lists map[string]any
	require.NoError(t, json.Unmarshal([]byte(definitions), &lists))
	for kind, list := range lists {
		objects, _ := list.([]any)
		for _, object := range objects {
			text, err := json.Marshal(object)
			require.NoError(t, err)
			all = append(all, kind+" "+string(text))
		}
	}
	require.NotEmpty(t, all)
	slices.Sort(all)
	return all
}

// Each permission that is missing is named, with and without the management API, and the command
// that is told grants them, and takes nothing.
func (l *lab) withoutPermissions(t *testing.T) {
	l.user("poor", "", "^mine$", "^mine$", "^$")
	queues := []string{"healthy", "shared-a"}
	topics, err := topicsOf(&cli.Session{Getenv: func(string) string { return l.policies }}, topology.Names{}, queues)
	require.NoError(t, err)
	poor := map[string]string{cli.EnvURI: l.as("poor")}

	v := l.doctor(poor, "--json", "--policies", l.policies, "healthy", "shared-a")
	assert.Equal(t, cli.ExitFound, v.code)
	for _, p := range inspect.Needs(topics) {
		_, found := find(v.findings, "permissions", `user "poor"`, fmt.Sprintf("no %s permission on %s %q", p.Operation,
			p.Kind, p.Name))
		// To bind takes two permissions, and the broker asks for that on the queue first.
		assert.Equal(t, p.Operation != inspect.Read || p.Kind != rabbitmq.KindExchange, found, "%+v", p)
	}

	poor[cli.EnvManagement] = l.api
	v = l.doctor(poor, "--json", "--policies", l.policies, "healthy", "shared-a")
	var fix string
	for _, p := range inspect.Needs(topics) {
		f, found := find(v.findings, "permissions", `user "poor"`, fmt.Sprintf("no %s permission on %s %q", p.Operation,
			p.Kind, p.Name))
		assert.True(t, found, "%+v", p)
		fix = f.Fix
	}
	l.run(fix)
	assert.Contains(t, l.get("permissions", "poor"), "^mine$")
	delete(poor, cli.EnvManagement)
	v = l.doctor(poor, "--json", "--policies", l.policies, "healthy", "shared-a")
	f, found := find(v.findings, "permissions", "", "")
	assert.False(t, found, "%+v", f)

	// With what is documented for a consumer nothing is missing; each one less is found.
	if t.Failed() {
		return
	}
	for _, p := range inspect.Needs(topics) {
		if p.Kind == rabbitmq.KindQueue && p.Name == "healthy" {
			less := strings.ReplaceAll(fix, "healthy|", "")
			l.run(less)
			v = l.doctor(poor, "--json", "--policies", l.policies, "healthy")
			_, found = find(v.findings, "permissions", `user "poor"`, `no read permission on queue "healthy"`)
			assert.True(t, found, v.out)
			break
		}
	}
}

func (l *lab) alarm() {
	t := l.t
	l.protected("healthy")
	l.broker.Ctl("set_vm_memory_high_watermark", "0.0001")
	var over, full verdict
	await.Until(t, func() bool {
		over = l.amqpOnly("healthy")
		f, found := find(over.findings, "alarms", "broker", "blocked the connection")
		return found && f.Severity == Problem
	})
	assert.Equal(t, cli.ExitFound, over.code)
	var f Finding
	await.Until(t, func() bool {
		full = l.full("healthy")
		var found bool
		f, found = find(full.findings, "alarms", "broker", "memory alarm on node")
		return found
	})
	l.run(f.Fix)
	await.Until(t, func() bool {
		full = l.full("healthy")
		_, found := find(full.findings, "alarms", "", "")
		return !found
	}, "%s", full.out)
}
