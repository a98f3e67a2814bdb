package dlqcmd

import (
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// mixed puts dead letters of two queues, of one that is not there, and of nobody into a queue that
// they share.
func mixed(t *testing.T) *place {
	t.Helper()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 2)
	p.fill(p.other, 2, 3)
	p.fill(p.main+".gone", 3, 4)
	p.Publish(p.main+suffix, amqp091.Publishing{Body: []byte("of nobody")})

	return p
}

// to are the arguments of a replay out of a queue that has no main queue.
func (p *place) toOrigins(flags ...string) []string {
	return append([]string{"replay", p.main + suffix, "--dead-letter-queue", p.main + suffix, "--to-origin",
		"--no-undo"}, flags...)
}

func TestReplayToOriginsOnABroker(t *testing.T) {
	t.Parallel()
	p := mixed(t)
	out, errs := p.ok(p.toOrigins()...)
	assert.Contains(t, out, "5 messages, of which 5 match; 3 can be replayed to their origins\n")
	assert.Regexp(t, p.main+` +2 +0 +-\n`, out)
	assert.Regexp(t, p.other+` +1 +0 +-\n`, out)
	assert.Regexp(t, p.main+`.gone +0 +- +does not exist\n`, out)
	assert.Regexp(t, `\n1 +origin unknown +replay them with --to and a filter\n`, out)
	assert.Contains(t, errs, "This was a dry run")

	code, _, errs := p.run(nil, p.toOrigins("--yes")...)
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "--to-origin with --yes: wanted --origin for each queue")
	p.Has(p.main+suffix, 5)

	code, out, errs = p.run(nil, p.toOrigins("--yes", "--origin", p.other)...)
	assert.Equal(t, cli.ExitIncomplete, code, errs)
	assert.Contains(t, out, "1 of 5 matching messages replayed to their origins\n")
	p.Has(p.other, 1)
	p.Has(p.main, 0)

	code, out, _ = p.run(nil, p.toOrigins("--yes", "--all-origins", "--json")...)
	assert.Equal(t, cli.ExitIncomplete, code)
	assert.Contains(t, out, `"origins": [`)
	assert.NotContains(t, out, `"to":`)
	p.Has(p.main, 2)
	p.Has(p.main+suffix, 2)

	code, out, _ = p.run(nil, p.toOrigins("--yes", "--all-origins")...)
	assert.Equal(t, cli.ExitIncomplete, code)
	assert.Contains(t, out, "2 messages, of which 2 match; 0 can be replayed", "there is nothing to run")
}

// On a terminal the question names the queues, and the run goes to these.
func TestReplayToOriginsAsks(t *testing.T) {
	t.Parallel()
	p := mixed(t)
	code, out, errs := p.run(func(s *cli.Session) {
		s.InIsTerminal, s.In = true, strings.NewReader("y\n")
	}, p.toOrigins()...)
	assert.Equal(t, cli.ExitIncomplete, code, errs)
	assert.Contains(t, out+errs, "Replay 3 messages to "+p.main+" (2), "+p.other+" (1)?")
	p.Has(p.main, 2)
	p.Has(p.other, 1)
}

func TestOriginFlags(t *testing.T) {
	t.Parallel()
	for text, args := range map[string][]string{
		"--origin and --all-origins need --to-origin": {"--origin", "a"},
		"exclude each other":                          {"--to-origin", "--to", "a"},
	} {
		f := orders(deadLetters(2)...)
		code, _, errs := f.run(t, nil, append([]string{"replay", "orders"}, args...)...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, text)
	}
}
