package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/topology"
)

// fakeRabbitmqctl lists what is in the file rows, and writes down what it is told to delete, an argument per line.
const fakeRabbitmqctl = `#!/bin/sh
cat >>eaten
case "$1" in
list_queues) echo list "$2" >>calls; cat rows ;;
*) for argument; do printf '%s\n' "$argument" >>calls; done ;;
esac
`

// pasted gives a mend to a shell as it is pasted, and returns the calls of rabbitmqctl and amqpretry.
func pasted(t *testing.T, shell, mend, rows string) []string {
	t.Helper()
	folder := t.TempDir()
	for name, content := range map[string]string{
		"rabbitmqctl": fakeRabbitmqctl, "sleep": "#!/bin/sh\n", "amqpretry": "#!/bin/sh\necho apply >>calls\n", "rows": rows, "calls": "", "eaten": "",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o700))
	}
	cmd := exec.Command(shell)
	cmd.Dir, cmd.Stdin = folder, strings.NewReader(mend)
	cmd.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"))
	_ = cmd.Run() // fails when the queue is kept
	eaten, err := os.ReadFile(filepath.Join(folder, "eaten"))
	require.NoError(t, err)
	require.Empty(t, eaten, "commands that follow are eaten as input")
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, files, 6, "a name was run as a command")
	calls, err := os.ReadFile(filepath.Join(folder, "calls"))
	require.NoError(t, err)

	return strings.Split(strings.TrimSuffix(string(calls), "\n"), "\n")
}

func recreated(vhost, name, queueType string) string {
	planned := &topology.Queue{Name: name, Arguments: amqp091.Table{"x-queue-type": queueType}}

	return Facts{VHost: vhost}.recreate(object{Name: name, Planned: planned, Topic: Topic{Name: "q", Plan: topology.Plan{Queue: "q"}}})
}

func TestRecreateDeletesOnlyWhatIsEmpty(t *testing.T) {
	deleted := func(arguments ...string) []string {
		list := []string{"list --vhost=v", "list --vhost=v", "list --vhost=v", "delete_queue", "--vhost=v"}
		return append(append(list, arguments...), "--", "q", "apply")
	}
	kept := []string{"list --vhost=v"}
	for name, test := range map[string]struct {
		queueType, rows string
		want            []string
	}{
		"quorum":           {"quorum", "messages\tconsumers\tname\n0\t0\tq\n", deleted()},
		"classic":          {"classic", "0\t0\tq\n", deleted("--if-empty", "--if-unused")},
		"messages":         {"quorum", "1\t0\tq\n", kept},
		"consumers":        {"quorum", "0\t1\tq\n", kept},
		"down":             {"quorum", "\t\tq\n", kept},
		"not there":        {"quorum", "0\t0\tc\n", kept},
		"only a beginning": {"quorum", "0\t0\tqueue\n0\t0\tq.retry\n10\t0\tq\n0\t0\txq\n", kept},
		"nothing":          {"quorum", "", kept},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, pasted(t, "sh", recreated("v", "q", test.queueType), test.rows))
		})
	}
}

// The shell gives rabbitmqctl exactly these names, and runs nothing else.
func TestRecreateQuotesNames(t *testing.T) {
	for _, name := range []string{
		"'; touch pwned; '", "$(touch pwned)", "`touch pwned`", "-n", "--", "%s", `\t`, "it's", "!!", `a"b`, "a b", "é😀*?~#",
	} {
		for _, shell := range []string{"sh", "bash"} {
			got := pasted(t, shell, recreated(name, name, "quorum"), "0\t0\t"+name+"\n")
			require.Len(t, got, 8, "%q", name)
			assert.Equal(t, []string{"delete_queue", "--vhost=" + name, "--", name, "apply"}, got[3:], "%q", name)
		}
	}
}

// To grep, each line of a name would be another row to find.
func TestRecreateRefusesControlCharacters(t *testing.T) {
	for _, name := range []string{"a\x00b", "a\nb", "a\tb", "a\x1b[2J", "a\x7f", "a\u0085b"} {
		for _, mend := range []string{recreated("/", name, "quorum"), recreated(name, "q", "quorum")} {
			assert.True(t, strings.HasPrefix(mend, "# no shell"), "%q", name)
			assert.NotContains(t, mend, "\n")
		}
	}
}
