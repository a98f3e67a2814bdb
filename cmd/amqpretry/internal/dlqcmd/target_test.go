package dlqcmd

import (
	"encoding/json"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// A replay into a queue that drops is refused, with the number, unless that is wanted.
func TestTargetThatDropsOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 20)
	full := p.main + ".full"
	p.Declare(full, amqp091.Table{"x-queue-type": "classic", "x-max-length": 5})
	const drops = " would drop 15 of 20 messages (max-length 5, overflow drop-head)"

	out, _ := p.ok("replay", p.main, "--to", full, "--dry-run")
	assert.Contains(t, out, "Warning: "+full+" has no consumer\nWarning: "+full+drops)
	out, _ = p.ok("replay", p.main, "--to", full, "--limit", "5", "--dry-run")
	assert.NotContains(t, out, "would drop")
	out, _ = p.ok("replay", p.main, "--to", full, "--json")
	var planned struct {
		WouldDrop int `json:"would_drop"`
		Target    struct {
			MaxLength int `json:"max_length"`
		} `json:"target"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &planned))
	assert.Equal(t, 15, planned.WouldDrop)
	assert.Equal(t, 5, planned.Target.MaxLength)

	for _, verb := range []string{"replay", "move"} {
		code, out, errs := p.run(nil, verb, p.main, "--to", full, "--yes", "--undo", p.file("none"))
		assert.Equal(t, cli.ExitFailed, code)
		assert.Empty(t, out)
		assert.Contains(t, errs, drops)
		assert.Contains(t, errs, "--allow-drop")
		assert.NoFileExists(t, p.file("none"))
	}
	p.Has(p.main+suffix, 20)
	out, _ = p.ok("replay", p.main, "--to", full, "--allow-drop", "--yes", "--undo", p.file("undo"))
	assert.Contains(t, out, "20 of 20 matching messages replayed to "+full+"\nWarning: 15 of them are not in "+full)
	p.Has(full, 5)

	out, _ = p.ok("import", p.main, p.file("undo"), "--to", full, "--dry-run")
	assert.Contains(t, out, "would drop 20 of 25 messages (max-length 5, overflow drop-head, 5 in it already)")
	code, out, errs := p.run(nil, "import", p.main, p.file("undo"), "--to", full, "--yes")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, out, "0 imported into "+full)
	assert.Contains(t, errs, "would drop 1 of 6 messages")
}

// A file knows its queue: whoever imports it elsewhere is asked.
func TestImportOfAnotherQueue(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 3)
	p.ok("purge", p.main, "--all", "--yes", "--undo", p.file("undo"))

	code, _, errs := p.run(nil, "import", p.other, "--dead-letter-queue", p.other, p.file("undo"))
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "contains messages of "+p.main+suffix+", not of "+p.other)
	assert.Contains(t, errs, "--yes")
	p.Has(p.other, 0)
	_, errs = p.ok("import", p.other, "--dead-letter-queue", p.other, p.file("undo"), "--yes")
	assert.Contains(t, errs, "contains messages of "+p.main+suffix)
	p.Has(p.other, 3)
}
