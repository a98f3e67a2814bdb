package dlqcmd

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// edit replays the message uuid-2 of three, and gives what was published.
func edit(t *testing.T, f *fake, set func(*world), args ...string) (code int, errs string) {
	t.Helper()
	code, _, errs = f.run(t, set, append([]string{"replay", "orders", "--yes", "--no-undo"}, args...)...)

	return code, errs
}

func TestBodyAndHeaders(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "body.json", `{"n":22}`)
	f := orders(deadLetters(3)...)
	code, errs := edit(t, f, nil, "--uuid", "uuid-2", "--body", "body.json", "--set-header", "who=me=you",
		"--remove-header", "tenant")
	assert.Equal(t, cli.ExitOK, code, errs)
	require.Len(t, f.published, 1)
	assert.JSONEq(t, `{"n":22}`, string(f.published[0].Body))
	assert.Equal(t, amqp091.Table{"who": "me=you", "amqpretry-count": "-1"}, f.published[0].Headers)

	f = orders(deadLetters(3)...)
	code, _ = edit(t, f, func(w *world) { w.In = strings.NewReader("from a pipe") }, "--uuid", "uuid-2", "--body", "-")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, "from a pipe", string(f.published[0].Body))

	bare := deadLetter(1)
	bare.Message.Headers = nil
	f = orders(bare)
	code, _ = edit(t, f, nil, "--set-header", "a=")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, amqp091.Table{"a": ""}, f.published[0].Headers)

	f = orders(deadLetters(3)...)
	write(t, "empty", "")
	code, _ = edit(t, f, nil, "--uuid", "uuid-2", "--body", "empty")
	assert.Equal(t, cli.ExitOK, code)
	assert.Empty(t, f.published[0].Body, "an empty body is a body")
}

func TestAnEditIsForOneMessage(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		text string
	}{
		"several": {[]string{"--set-header", "a=b"}, "an edit changes exactly one message, and several match"},
		"none": {[]string{"--set-header", "a=b", "--uuid", "x"},
			`an edit changes exactly one message, and none of 3 in "orders.dlq" matches`},
		"of ours": {[]string{"--set-header", "amqpretry-count=0", "--uuid", "uuid-1"},
			`"amqpretry-count" belongs to watermill-retry or to the broker`},
		"of the broker": {[]string{"--remove-header", "x-death", "--uuid", "uuid-1"}, `"x-death" belongs to`},
		"no header": {[]string{"--remove-header", "tenent", "--uuid", "uuid-1"},
			`the message has no header "tenent"`},
		"malformed":      {[]string{"--set-header", "a"}, "--set-header: must be name=value"},
		"twice":          {[]string{"--set-header", "a=1", "--set-header", "a=2"}, `"a" is there twice`},
		"set and remove": {[]string{"--set-header", "a=1", "--remove-header", "a"}, `"a" is there twice`},
		"no edit":        {[]string{"--edit-all"}, "--edit-all: wanted a change"},
		"no file":        {[]string{"--body", "/no/such/file", "--uuid", "uuid-1"}, "--body: open /no/such/file"},
	} {
		t.Run(name, func(t *testing.T) {
			f := orders(deadLetters(3)...)
			code, errs := edit(t, f, nil, test.args...)
			assert.NotEqual(t, cli.ExitOK, code)
			assert.Contains(t, errs, test.text)
			assert.Zero(t, f.runs)
		})
	}

	f := orders(deadLetters(3)...)
	code, _ := edit(t, f, nil, "--set-header", "a=b", "--edit-all")
	assert.Equal(t, cli.ExitOK, code)
	require.Len(t, f.published, 3)
	for _, p := range f.published {
		assert.Equal(t, "b", p.Headers["a"])
	}
}

// Between the browse and the replay another message may come that the filter matches.
func TestOnlyTheMessageThatWasLookedAtIsEdited(t *testing.T) {
	t.Chdir(t.TempDir())
	f := orders(deadLetter(1))
	code, _ := edit(t, f, func(w *world) {
		w.In = readerFunc(func(p []byte) (int, error) {
			// the body is read first; the other one is there when it is looked for
			return copy(p, "x"), os.ErrDeadlineExceeded
		})
	}, "--body", "-")
	assert.Equal(t, cli.ExitFailed, code, "half a body is none")
	assert.Zero(t, f.runs)

	other := deadLetter(2)
	f = orders(deadLetter(1))
	code, _ = edit(t, f, func(w *world) {
		w.Getenv = environment(map[string]string{"EDITOR": `sh -c 'echo "{\"n\":9}" > "$1"' editor`})
		w.Out = writerFunc(func([]byte) {})
		f.onReplay = func() { f.deadLetters = append(f.deadLetters, other) }
	}, "--edit")
	assert.Equal(t, cli.ExitOK, code)
	require.Len(t, f.published, 1)
	assert.JSONEq(t, `{"n":9}`, string(f.published[0].Body))
	assert.Len(t, f.deadLetters, 1)
	assert.Equal(t, "uuid-2", f.deadLetters[0].UUID)
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func environment(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func TestEditor(t *testing.T) {
	editor := func(script string) func(*world) {
		return func(w *world) {
			w.Getenv = environment(map[string]string{"EDITOR": "false", "VISUAL": "sh -c '" + script + "' editor"})
		}
	}
	t.Run("changes", func(t *testing.T) {
		f := orders(deadLetters(3)...)
		code, errs := edit(t, f, editor(`sed -i s/2/7/ "$1"; echo >> "$1"`), "--uuid", "uuid-2", "--edit")
		assert.Equal(t, cli.ExitOK, code, errs)
		require.Len(t, f.published, 1)
		assert.Equal(t, `{"n":7}`, string(f.published[0].Body), "without the line end that editors add")
	})
	t.Run("does nothing", func(t *testing.T) {
		f := orders(deadLetters(3)...)
		code, errs := edit(t, f, editor("true"), "--uuid", "uuid-2", "--edit")
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, "the body was not changed, so nothing was done")
		assert.Zero(t, f.runs)

		code, _ = edit(t, f, editor("true"), "--uuid", "uuid-2", "--edit", "--set-header", "a=b")
		assert.Equal(t, cli.ExitOK, code)
	})
	t.Run("fails", func(t *testing.T) {
		f := orders(deadLetters(3)...)
		code, errs := edit(t, f, editor("exit 3"), "--uuid", "uuid-2", "--edit")
		assert.Equal(t, cli.ExitFailed, code)
		assert.Contains(t, errs, "exit status 3; nothing was done")
		assert.Zero(t, f.runs)
	})
	t.Run("breaks the JSON", func(t *testing.T) {
		f := orders(deadLetters(3)...)
		code, errs := edit(t, f, editor(`echo oops > "$1"`), "--uuid", "uuid-2", "--edit")
		assert.Equal(t, cli.ExitFailed, code)
		found := regexp.MustCompile(`The text is in (\S+): fix it`).FindStringSubmatch(errs)
		require.NotNil(t, found, errs)
		assert.Equal(t, "oops\n", read(t, found[1])[:5], "the work is not lost")
		require.NoError(t, os.Remove(found[1]))
		assert.Zero(t, f.runs)
	})
	t.Run("no text", func(t *testing.T) {
		l := deadLetter(1)
		l.Message.Body = []byte("\x00\x01\x02")
		code, errs := edit(t, orders(l), editor("true"), "--edit")
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, "--edit: the body is no text")
	})
	t.Run("unreadable", func(t *testing.T) {
		l := deadLetter(1)
		l.Unreadable = "odd"
		code, errs := edit(t, orders(l), editor("true"), "--edit")
		assert.Equal(t, cli.ExitFailed, code)
		assert.Contains(t, errs, "unreadable headers (odd)")
	})
}
