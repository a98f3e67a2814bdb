package topology_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
)

// A rabbitmqctl that lists what is in the file rows, and writes down what it is told to delete, an argument per line.
const fakeRabbitmqctl = `#!/bin/sh
cat >>eaten
case "$1" in
list_queues) echo list "$2" >>calls; cat rows ;;
*) for argument; do printf '%s\n' "$argument" >>calls; done ;;
esac
`

// run gives the commands to a shell as they are pasted, and returns what rabbitmqctl was told.
func run(t require.TestingT, folder, shell, script, rows string) []string {
	write := func(name, content string, mode os.FileMode) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(content), mode))
	}
	write("rabbitmqctl", fakeRabbitmqctl, 0o700)
	write("sleep", "#!/bin/sh\n", 0o700)
	write("rows", rows, 0o600)
	write("calls", "", 0o600)
	cmd := exec.Command(shell)
	cmd.Dir, cmd.Stdin, cmd.Env = folder, strings.NewReader(script), append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
	var failed *exec.ExitError
	if output, err := cmd.CombinedOutput(); err != nil && !errors.As(err, &failed) {
		require.NoError(t, err, "%s", output)
	}
	eaten, err := os.ReadFile(filepath.Join(folder, "eaten"))
	require.NoError(t, err)
	require.Empty(t, eaten, "commands that follow are eaten as input")
	calls, err := os.ReadFile(filepath.Join(folder, "calls"))
	require.NoError(t, err)
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, files, 5, "a name was run as a command")
	return strings.Split(strings.TrimSuffix(string(calls), "\n"), "\n")
}

func retryQueue(name, queueType string) topology.ObsoleteQueue {
	return topology.ObsoleteQueue{Queue: topology.Queue{Name: name, Delay: time.Minute, Arguments: amqp.Table{"x-queue-type": queueType}}}
}

func TestRetireCommandsDeleteOnlyWhatIsListedAsEmpty(t *testing.T) {
	script, err := topology.RetireCommands("v", retryQueue("q", "quorum"), retryQueue("c", "classic"))
	require.NoError(t, err)
	list := []string{"list --vhost=v", "list --vhost=v", "list --vhost=v"}
	quorum := append(list[:3:3], "delete_queue", "--vhost=v", "--", "q")
	classic := append(list[:3:3], "delete_queue", "--vhost=v", "--if-empty", "--if-unused", "--", "c")
	kept := list[:1:1]
	for name, test := range map[string]struct {
		rows string
		want []string
	}{
		"both are empty":   {"messages\tconsumers\tname\n0\t0\tq\n0\t0\tc\n", append(quorum[:7:7], classic...)},
		"messages":         {"0\t0\tc\n1\t0\tq\n", append(kept, classic...)},
		"consumers":        {"0\t0\tc\n0\t1\tq\n", append(kept, classic...)},
		"down":             {"\t\tq\n0\t0\tc\n", append(kept, classic...)},
		"not there":        {"0\t0\tc\n", append(kept, classic...)},
		"only a beginning": {"0\t0\tqueue\n0\t0\tq.retry\n10\t0\tq\n0\t0\txq\n0\t0\tc\n", append(kept, classic...)},
		"nothing":          {"", append(kept, kept...)},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, run(t, t.TempDir(), "sh", script, test.rows))
		})
	}
}

// Whatever the names: the shell gives rabbitmqctl exactly these, and runs nothing else.
func TestRetireCommandsQuoteNames(t *testing.T) {
	folder := t.TempDir()
	names := rapid.OneOf(rapid.StringN(1, 30, 255), rapid.StringMatching("[-'\"$`\\\\!*?~#;&|<>(){} a\u202eé😀]{1,12}"),
		rapid.SampledFrom([]string{"'; touch pwned; '", "$(touch pwned)", "`touch pwned`", "-n", "--", "%s", `\t`, "it's", "!!"}))
	rapid.Check(t, func(t *rapid.T) {
		vhost, name := names.Draw(t, "vhost"), names.Draw(t, "name")
		script, err := topology.RetireCommands(vhost, retryQueue(name, "quorum"))
		if err != nil {
			var refused *topology.NameError
			if !errors.As(err, &refused) {
				t.Fatal(err)
			}
			return
		}
		got := run(t, folder, rapid.SampledFrom([]string{"sh", "bash"}).Draw(t, "shell"), script, "0\t0\t"+name+"\n")
		want := []string{"delete_queue", "--vhost=" + vhost, "--", name}
		if len(got) != 7 || !assert.ObjectsAreEqual(want, got[3:]) {
			t.Fatalf("%q", got)
		}
	})
}

func TestRetireCommandsRefuseControlCharacters(t *testing.T) {
	for _, name := range []string{"a\x00b", "a\nb", "a\tb", "a\x1b[2J", "a\x7f", "a\u0085b", "a\xff"} {
		_, err := topology.RetireCommands("/", retryQueue(name, "quorum"))
		var refused *topology.NameError
		require.ErrorAs(t, err, &refused, "%q", name)
		_, err = topology.RetireCommands(name, retryQueue("q", "quorum"))
		require.ErrorAs(t, err, &refused, "%q", name)
	}
}

// A zsh that was not told otherwise takes pasted comments for commands.
func TestRetireCommandsCommentsMeanNothing(t *testing.T) {
	script, err := topology.RetireCommands("vhost", retryQueue("name", "quorum"))
	require.NoError(t, err)
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "#") {
			assert.Regexp(t, `^# [A-Za-z0-9 .,]+\n$`, line)
		} else {
			assert.NotContains(t, line, "# ")
		}
	}
	script, err = topology.RetireCommands("vhost")
	require.NoError(t, err)
	assert.Empty(t, script)
}
