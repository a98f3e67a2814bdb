package dlqcmd

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

func TestParkOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 3)

	out, errs := p.ok("park", p.main, "uuid-0", "--note", "ask legal", "--yes")
	assert.Equal(t, p.main+".dlq: 1 of 1 matching message parked\n", out)
	assert.Empty(t, errs, "no undo file")
	out, _ = p.ok("list", p.main, "--parked")
	assert.Contains(t, out, "3  uuid-0  1h00m  exhausted  4      0        charge/orders  (parked) card 0 declined\n")
	out, _ = p.ok("stat", p.main)
	assert.Contains(t, out, "\nparked      1\n")
	out, _ = p.ok("show", p.main, "uuid-0")
	assert.Regexp(t, `\n  parked +yes: \S+ \(\ds ago\) by \S+@\S+: ask legal\n`, out)
	out, _ = p.ok("show", p.main, "uuid-0", "--json")
	assert.Regexp(t, `"parked": true,\s+"parking": \{\s+"at": "[^"]+",\s+"by": "[^"]+",\s+"note": "ask legal"\s+\}`, out)

	out, _ = p.ok("replay", p.main)
	assert.Contains(t, out, "3 messages, of which 3 match; 2 can be replayed")
	assert.Contains(t, out, "1       parked  --include-parked replays them too\n")
	code, out, _ := p.run(nil, "replay", p.main, "--no-undo", "--yes")
	assert.Equal(t, cli.ExitIncomplete, code)
	assert.Contains(t, out, "2 of 3 matching messages replayed")

	out, _ = p.ok("unpark", p.main, "--parked", "--json", "--yes")
	assert.Contains(t, out, `"done": 1`)
	out, _ = p.ok("replay", p.main, "--no-undo", "--yes")
	assert.Contains(t, out, "1 of 1 matching message replayed")
	p.Has(p.main, 3)
}

func TestReplayOfANamedMessageTakesAParkedOne(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 2)
	p.ok("park", p.main, "--uuid", "uuid-0,uuid-1", "--note", "x", "--yes")
	out, _ := p.ok("replay", p.main, "uuid-0", "--no-undo", "--yes")
	assert.Contains(t, out, "1 of 1 matching message replayed")
}

func TestParkNeedsASelectionAndANote(t *testing.T) {
	t.Parallel()
	f := orders(deadLetters(2)...)
	for _, args := range [][]string{{"park", "orders", "--note", "x"}, {"unpark", "orders"}} {
		code, _, errs := f.run(t, nil, args...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, "wanted MESSAGE, or a filter", args)
	}
	code, _, errs := f.run(t, nil, "park", "orders", "uuid-1", "--note", "")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "--note")
	assert.Zero(t, f.opened)
}
