package delayscmd

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
	"github.com/amqpretry/watermill-retry/internal/testkit/drain"
	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// Messages that wait are listed, and those that a person names are cancelled, sent and postponed,
// and wait again after an undo.
func TestWaits(t *testing.T) {
	t.Parallel()
	uri := brokertest.URI(t)
	l := newLabOf(t, uri, config.Ladder{Unit: time.Minute, Levels: 3, Radix: 3})
	target, other := topology.Target{Key: l.queue}, topology.Target{Exchange: l.queue + ".events", Key: "paid"}
	l.Declare(l.queue, nil)
	l.land(target)
	l.delay(target, 5*time.Minute, "a")
	l.delay(target, time.Minute, "b")
	l.delay(target, 26*time.Minute, "c")
	l.delay(other, time.Minute, "theirs")
	l.Has(l.ladder.WaitQueue(2, 2), 1)
	run := func(args ...string) done { return l.ok(append(args, "--target", l.queue)...) }

	d := run("list")
	assert.Regexp(t, `(?m)^DUE IN +UUID +WAITS IN +CALLS +HANDLER/TOPIC +ERROR$`, d.out)
	assert.Regexp(t, `(?ms)^<(1m00s|59s) +id-b .*^<(5m00s|4m59s) +id-a .*^<(26m00s|25m59s) +id-c `, d.out)
	assert.Contains(t, d.errs, "waits of "+l.queue+": 3 messages\n")
	assert.NotContains(t, d.out, "theirs")
	d = run("list", "--limit", "1", "--json", "--due-after", "10m")
	var listed struct {
		Wait dlq.Wait
		Body string
	}
	require.NoError(t, json.Unmarshal([]byte(d.out), &listed), d.out)
	assert.Equal(t, "c", listed.Body)
	assert.Equal(t, target, listed.Wait.Target)
	assert.Equal(t, l.ladder.WaitQueue(2, 2), listed.Wait.Queue)
	assert.Contains(t, run("list", "--limit", "1").errs, "1 of 3 messages; --limit lists more")
	theirs := []string{"--target-exchange", other.Exchange, "--target-key", "paid"}
	assert.Contains(t, l.ok(append([]string{"list"}, theirs...)...).out, "id-theirs")

	undo := filepath.Join(t.TempDir(), "undo.jsonl")
	d = run("cancel", "--uuid", "id-b,id-x")
	assert.Contains(t, d.out, "waits of "+l.queue+": 3 messages, of which 1 matches; 1 can be cancelled")
	assert.Contains(t, d.errs, "This was a dry run: nothing was cancelled. --yes does it.")
	d = run("cancel", "--uuid", "id-b,id-x", "--yes", "--undo", undo)
	assert.Contains(t, d.out, "1 of 1 matching message cancelled")
	assert.Contains(t, d.errs, "1 of 2 UUIDs not found: they no longer wait, or never did")
	command := regexp.MustCompile(`amqpretry delays (restore .*)`).FindStringSubmatch(d.errs)
	require.NotNil(t, command, d.errs)
	assert.Contains(t, run("list").errs, ": 2 messages\n")
	assert.Contains(t, run("restore", undo).out, "1 message can wait again")
	assert.Contains(t, l.ok(strings.Fields(command[1])...).out, "1 of 1 message wait again")
	assert.Contains(t, run("list", "--uuid", "id-b").errs, ": 1 message\n")

	d = run("postpone", "--for", "10m", "--all", "--yes", "--no-undo")
	assert.Contains(t, d.out, "2 of 3 matching messages postponed")
	assert.Regexp(t, `(?m)^1 +due later already +nothing$`, d.out)
	assert.Contains(t, run("list", "--due-within", "9m").errs, ": no messages")
	assert.Contains(t, run("list", "--due-within", "11m", "--limit", "0").errs, ": 2 messages\n")

	d = run("send", "--uuid", "id-c", "--yes", "--no-undo")
	assert.Contains(t, d.out, "1 of 1 matching message sent to "+l.queue)
	assert.Equal(t, []string{"c"}, rabbit.Bodies(drain.N(t, l.Client, l.queue, 1)))

	l.land(other)
	l.Do(func(channel *amqp091.Channel) error {
		return errors.Join(channel.ExchangeDeclare(other.Exchange, "topic", true, false, false, false, nil),
			channel.QueueBind(l.queue, "paid", other.Exchange, false, nil))
	})
	t.Cleanup(func() { l.Remove(other.Exchange) })
	l.ok(append([]string{"send", "--all", "--yes", "--no-undo"}, theirs...)...)
	assert.Equal(t, []string{"theirs"}, rabbit.Bodies(drain.N(t, l.Client, l.queue, 1)))

	for _, args := range [][]string{{"send"}, {"cancel", "--all", "--uuid", "x"}, {"postpone", "--all"},
		{"postpone", "--all", "--for", "1h", "--until", "2026-12-01T06:00:00Z"},
		{"postpone", "--all", "--until", "now"},
		{"postpone", "--all", "--until", "2020-12-01T06:00:00Z"}, {"list", "--due-within", "1m", "--due-after", "2m"},
		{"restore", "nowhere.jsonl"}, {"list", "--target-exchange", "x"}} {
		d = l.run(append(args, "--target", l.queue)...)
		assert.Equal(t, cli.ExitUsage, d.code, "%q: %s", args, d.errs)
	}
	assert.Equal(t, cli.ExitUsage, l.run("list").code)

	l.Do(func(channel *amqp091.Channel) error {
		_, err := channel.QueueDelete(l.queue+".landing", false, false, false)
		return err
	})
	d = l.run("send", "--target", l.queue, "--all", "--yes", "--no-undo")
	assert.Equal(t, cli.ExitFailed, d.code)
	assert.Contains(t, d.errs, `target "`+l.queue+`.landing": there is no such queue`)
	assert.Contains(t, d.errs, "amqpretry topology apply")
	assert.Contains(t, run("list").errs, ": 2 messages\n", "they still wait")

	channel := l.Channel() // another command
	_, err := channel.QueueDeclare(l.ladder.WaitQueue(1, 1)+".lock", false, true, true, false, nil)
	require.NoError(t, err)
	l.delay(target, 3*time.Minute, "d")
	l.Has(l.ladder.WaitQueue(1, 1), 1)
	d = l.run("list", "--target", l.queue)
	assert.Equal(t, cli.ExitFailed, d.code)
	assert.Contains(t, d.errs, "another list, cancel, send or postpone is at work")
	assert.NotContains(t, d.errs, "dead-letter")
}
