package inbox

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/env"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
	"github.com/amqpretry/watermill-retry/internal/testkit/report"
	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
)

const (
	processes = 4
	leased    = 3 * time.Second
)

// With its claim and its effect in one transaction, each message has its effect exactly once.
func TestTransactional(t *testing.T) {
	r := prove(t, transactional, env.Int(t, "MESSAGES", 1000), env.Int(t, "KILLS", 10))
	assert.Zero(t, r.doubles, "messages with more than one effect")
	failing := 0
	for i := range r.messages {
		if fails(id(i)) {
			failing++
		}
	}
	assert.GreaterOrEqual(t, r.calls-r.effects, failing, "failures, and kills, have rolled effects back")
}

// With a lease, a message whose process died between its effect and the commit of the claim has the
// effect once more. Each kill can do that to the messages in flight only.
func TestLease(t *testing.T) {
	kills := env.Int(t, "KILLS", 10)
	r := prove(t, lease, env.Int(t, "MESSAGES", 1000), kills)
	assert.LessOrEqual(t, r.doubles, kills*8, "eight are in flight in a process")
}

// Without an inbox there are doubles: those that were published twice, at least. So the proof can
// fail.
func TestWithout(t *testing.T) {
	r := prove(t, none, 500, min(5, env.Int(t, "KILLS", 5)))
	assert.Positive(t, r.doubles)
}

// result is what was counted.
type result struct{ messages, effects, doubles, calls int }

// proof is one run.
type proof struct {
	*testing.T

	service service
	random  *mathrand.Rand
	db      *sql.DB
	rabbit  *rabbit.Client
	plan    topology.Plan
	workers [processes]*worker
}

// prove has a service handle messages, whose processes it kills at random moments.
func prove(t *testing.T, by form, messages, kills int) result {
	p := prepare(t, by)
	began := time.Now()
	for i := range p.workers {
		p.workers[i] = p.start()
	}
	// One kill for each part of the messages, so that kills are spread over the run, however fast
	// it is.
	published, twice := 0, 0
	for kill := range kills {
		part := messages*(kill+1)/kills - published
		twice += p.publish(published, part)
		p.await(published + p.random.IntN(part))
		<-time.After(time.Duration(p.random.Int64N(int64(2 * longest))))
		victim := p.random.IntN(processes)
		p.workers[victim].kill()
		p.workers[victim] = p.start()
		published += part
	}
	p.await(messages)
	p.drain()
	r := p.count()
	require.Equal(t, messages, r.messages, "messages with an effect")

	table := report.Table{
		Title: "Killed processes: " + string(by),
		Head:  []string{"messages", "of them published twice", "kills", "calls", "effects", "doubles", "seconds"},
	}
	table.Add(messages, twice, kills, r.calls, r.effects, r.doubles, int(time.Since(began).Seconds()))
	report.Write(t, table.String())

	return r
}

func prepare(t *testing.T, by form) *proof {
	t.Helper()
	for _, name := range []string{"AMQP_URI", "POSTGRES_URI"} {
		require.NotEmpty(t, os.Getenv(name), name+" is not set: run make inbox")
	}
	name := "inbox" + strings.ToLower(rand.Text())
	p := &proof{T: t, rabbit: rabbit.New(t, os.Getenv("AMQP_URI"))}
	p.random, _ = env.Random(t)
	p.service = service{
		Broker: os.Getenv("AMQP_URI"), Database: os.Getenv("POSTGRES_URI"), Queue: name, Form: by, Lease: leased,
		Inbox:   sqlstore.Config{Table: name, ValuesTable: name + "_values"},
		Effects: name + "_effects",
	}
	db, err := sql.Open("pgx", p.service.Database)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	p.db = db
	inbox, err := sqlstore.Postgres(db, p.service.Inbox)
	require.NoError(t, err)
	require.NoError(t, inbox.CreateTables(t.Context()))
	p.exec("CREATE TABLE " + p.service.Effects + " (message text NOT NULL, call bigint NOT NULL)")
	p.exec("CREATE INDEX ON " + p.service.Effects + " (message)")
	p.exec("CREATE SEQUENCE " + p.service.Effects + "_calls")
	t.Cleanup(func() {
		p.exec("DROP TABLE " + name + ", " + name + "_values, " + p.service.Effects)
		p.exec("DROP SEQUENCE " + p.service.Effects + "_calls")
	})

	retrier, err := p.service.retrier()
	require.NoError(t, err)
	p.plan, err = retrier.Plan(name)
	require.NoError(t, err)
	require.NoError(t, retrier.Close())
	t.Cleanup(func() { p.rabbit.RemovePlan(p.plan) })
	t.Cleanup(func() {
		for _, w := range p.workers {
			if w != nil {
				w.kill()
			}
		}
	})

	return p
}

func (p *proof) exec(statement string) {
	p.Helper()
	_, err := p.db.ExecContext(context.Background(), statement)
	require.NoError(p, err)
}

func id(n int) string { return fmt.Sprint("message-", n) }

// publish publishes messages, one in 20 of them twice, and returns how many those are.
func (p *proof) publish(from, n int) (twice int) {
	p.Helper()
	var all []amqp091.Publishing
	for i := range n {
		m := rabbit.Message(id(from+i), "")
		all = append(all, m)
		if p.random.IntN(20) == 0 {
			all = append(all, m)
			twice++
		}
	}
	p.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	p.rabbit.Publish(p.service.Queue, all...)

	return twice
}

// await waits until so many messages have effects.
func (p *proof) await(messages int) {
	p.Helper()
	there := func() bool { return p.number("count(DISTINCT message)") >= messages }
	await.Until(p, there, "%d messages with effects", messages)
}

func (p *proof) number(expression string) (n int) {
	err := p.db.QueryRowContext(context.Background(), "SELECT "+expression+" FROM "+p.service.Effects).Scan(&n)
	if err != nil {
		return -1
	}

	return n
}

// drain lets the processes work until no message is left: neither in a queue nor in their hands.
func (p *proof) drain() {
	p.Helper()
	for end := time.Now().Add(await.Bound); ; {
		await.Until(p, func() bool { return p.waiting() == 0 }, "the queues get empty")
		for _, w := range p.workers {
			w.close()
		}
		p.rabbit.Idle(p.service.Queue)
		if p.waiting() == 0 {
			return
		}
		require.True(p, time.Now().Before(end), "messages are left")
		for i := range p.workers {
			p.workers[i] = p.start()
		}
	}
}

// waiting is how many messages lie in the main queue, retry queues and the dead-letter queue.
func (p *proof) waiting() (n int) {
	n = max(0, p.rabbit.Depth(p.service.Queue))
	for _, queue := range p.plan.Queues {
		n += max(0, p.rabbit.Depth(queue.Name))
	}

	return n
}

func (p *proof) count() result {
	r := result{messages: p.number("count(DISTINCT message)"), effects: p.number("count(*)")}
	r.doubles = r.effects - r.messages
	err := p.db.QueryRowContext(p.Context(), "SELECT last_value FROM "+p.service.Effects+"_calls").Scan(&r.calls)
	require.NoError(p, err)

	return r
}

// worker is a process of the service.
type worker struct {
	t       *proof
	command *exec.Cmd
	stdin   io.Closer
	ended   chan struct{}
	err     error // when it has ended
}

// start starts a process and waits until it consumes.
func (p *proof) start() *worker {
	p.Helper()
	spec, err := json.Marshal(p.service)
	require.NoError(p, err)
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), variable+"="+string(spec))
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	require.NoError(p, err)
	stdout, err := command.StdoutPipe()
	require.NoError(p, err)
	require.NoError(p, command.Start())
	w := &worker{t: p, command: command, stdin: stdin, ended: make(chan struct{})}
	ready := make(chan struct{})
	go func() {
		first := make([]byte, 1)
		if n, _ := stdout.Read(first); n > 0 {
			close(ready)
		}
		_, _ = io.Copy(io.Discard, stdout)
		w.err = command.Wait()
		close(w.ended)
	}()
	await.Closed(p, ready, "the process is ready")

	return w
}

// kill ends it at once, as kill -9 does.
func (w *worker) kill() {
	_ = w.command.Process.Kill()
	<-w.ended
}

func (w *worker) close() {
	require.NoError(w.t, w.stdin.Close())
	await.Closed(w.t, w.ended, "the process ends")
	require.NoError(w.t, w.err)
}
