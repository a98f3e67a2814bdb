package topology_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/config/topology"
	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
)

func TestProtectArguments(t *testing.T) {
	assert.Equal(t, amqp.Table{
		"x-queue-type":              "quorum",
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": "orders.dlq",
		"x-dead-letter-strategy":    "at-least-once",
		"x-overflow":                "reject-publish",
		"x-delivery-limit":          int64(1000),
	}, topology.ProtectArguments("orders.dlq"))
	_, drops := rabbitmq.DropLimit(topology.ProtectArguments("orders.dlq"), "")
	assert.False(t, drops)
}

// The policy and the arguments say the same.
func TestProtectPolicyIsTheArguments(t *testing.T) {
	var definition map[string]any
	require.NoError(t, json.Unmarshal([]byte(topology.ProtectPolicy("/", "q", "q.dlq").Definition), &definition))
	arguments := topology.ProtectArguments("q.dlq")
	for key, value := range definition {
		assert.EqualValues(t, arguments["x-"+key], value, key)
	}
	assert.Len(t, definition, len(arguments)-1, "all but the type")
}

// oddNames are names that the broker takes and that shells, patterns and JSON have their own ideas
// about.
var oddNames = []string{
	"orders", "it's", `"q"`, "$HOME `id` $(id)", `a.b+c*[d](e){2}|f^$?\`, "-dash", "--help", "ünï 💥", "a\\x41",
	"tab\tbell\x07 c1\u0085",
	"#hash !bang ~ %s", "a;b&c>d", "it''s", `\'`, strings.Repeat("[", 255),
}

func genName() *rapid.Generator[string] {
	return rapid.OneOf(rapid.SampledFrom(oddNames), rapid.StringN(1, 40, 255))
}

// A shell splits the lines into the words that were meant, whatever the names.
func TestPolicyCommandsInAShell(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "rabbitmqctl"), []byte(script), 0o755))
	words := func(lines string) []string {
		cmd := exec.Command("sh", "-c", lines)
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=/"}
		out, err := cmd.Output()
		require.NoError(t, err, lines)
		return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	}

	for i, name := range oddNames {
		vhost := oddNames[(i+1)%len(oddNames)]
		p := topology.ProtectPolicy(vhost, name, name+".dlq")
		option := []string{"-p", vhost}
		if strings.HasPrefix(vhost, "-") {
			option = []string{"--vhost=" + vhost}
		}
		set := append(append([]string{"set_policy"}, option...), "--priority", "100", "--apply-to", "queues", p.Name,
			p.Pattern, p.Definition)
		assert.Equal(t, set, words(p.SetCommand()))
		assert.Equal(t, set, words(p.String()), "with its comments")
		// A shell that takes pasted comments for commands finds nothing in them.
		assert.Equal(t, set, words(strings.ReplaceAll("\n"+p.String(), "\n# ", "\ntrue ")))
		assert.Equal(t, append(append([]string{"clear_policy"}, option...), p.Name), words(p.ClearCommand()))
	}

	// A line break ends no comment, or what follows would be run.
	p := topology.ProtectPolicy("a\nexit 1\n", "q", "q.dlq")
	assert.Equal(t, []string{"set_policy", "-p", "a\nexit 1\n"}, words(p.String())[:3])
}

// The pattern matches the queue's name and no other.
func TestPolicyPattern(t *testing.T) {
	// the broker has no others
	queueName := genName().Filter(func(name string) bool { return !strings.ContainsAny(name, "\r\n") })
	rapid.Check(t, func(t *rapid.T) {
		name, other := queueName.Draw(t, "name"), queueName.Draw(t, "other")
		p := topology.ProtectPolicy("/", name, name+".dlq")
		// The broker matches bytes; one character for each byte gives Go the same view.
		pattern := regexp.MustCompile("(?s)" + bytewise(p.Pattern))
		assert.True(t, pattern.MatchString(bytewise(name)), p.Pattern)
		for _, o := range []string{other, name + "x", "x" + name, name[:len(name)-1] + "~x", strings.ToUpper(name)} {
			assert.Equal(t, o == name, pattern.MatchString(bytewise(o)), "%q matches %q", p.Pattern, o)
		}
		assert.False(t, strings.ContainsFunc(p.Name+p.Pattern+p.Definition, unicode.IsControl), "%q", p)

		var definition map[string]any
		require.NoError(t, json.Unmarshal([]byte(p.Definition), &definition))
		assert.Equal(t, name+".dlq", definition["dead-letter-routing-key"])
	})
}

func bytewise(s string) string {
	runes := make([]rune, len(s))
	for i := range len(s) {
		runes[i] = rune(s[i])
	}
	return string(runes)
}
