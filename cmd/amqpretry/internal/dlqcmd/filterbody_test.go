package dlqcmd

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/header"
	"github.com/amqpretry/watermill-retry/internal/testkit/await"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// filtering is an operation that changes bodies with a command.
func filtering(ctx context.Context, command string, timeout time.Duration) *operation {
	o := &operation{plan: dlq.Plan{Kind: dlq.Replay, Change: &dlq.Change{}}}
	o.watchRemoved()
	o.filterBodies(ctx, command, timeout)

	return o
}

func TestFilterBody(t *testing.T) {
	t.Parallel()
	binary := "\x00\xff\r\n\x80 no line feed"
	for name, test := range map[string]struct {
		command, body, want, fails string
		encoding                   string
	}{
		"changed":           {command: "tr a b", body: "a\na", want: "b\nb"},
		"a pipe":            {command: "cat | tr a b | cat", body: "aa", want: "bb"},
		"byte for byte":     {command: "cat", body: binary, want: binary},
		"no body":           {command: "cat"},
		"ends the line":     {command: "echo x", body: "a", want: "x"},
		"has its line feed": {command: "echo x", body: "a\n", want: "x\n"},
		"to nothing": {command: "true", body: strings.Repeat("not read", 1<<17),
			fails: "the command printed nothing"},
		"fails":                {command: "echo said; echo 'no\n order' >&2; exit 3", fails: "exit status 3: no order"},
		"fails without a word": {command: "exit 3", fails: "exit status 3"},
		"is not there":         {command: "/nowhere/command", fails: "exit status 127: "},
		"killed":               {command: "kill -9 $$", fails: "signal: killed"},
		"says much": {command: "printf %5000s x | tr ' ' y >&2; exit 1",
			fails: "exit status 1: " + strings.Repeat("y", mostReason)},
		"prints too much":  {command: "head -c 140000000 /dev/zero", fails: "the command printed more than 128 MiB"},
		"not packed":       {command: "cat", body: "text", encoding: "gzip", fails: "content encoding gzip: "},
		"another encoding": {command: "tr a b", body: "a", want: "b", encoding: "br"},
		"takes long":       {command: "sleep 60 | cat", fails: "the command took longer than 1s (--filter-timeout)"},
		"leaves something": {command: "sleep 60 & echo x", want: "", fails: "WaitDelay expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := await.Bound
			if strings.HasPrefix(test.fails, "the command took") {
				limit = time.Second
			}
			m := amqp091.Publishing{Body: []byte(test.body), ContentEncoding: test.encoding}
			err := filtering(t.Context(), test.command, limit).plan.Edit(&m)
			if test.fails != "" {
				require.ErrorContains(t, err, test.fails)
				assert.LessOrEqual(t, len(err.Error()), mostReason+20)
				assert.Equal(t, test.body, string(m.Body))
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want, string(m.Body))
		})
	}
}

func TestFilterBodyThatIsPacked(t *testing.T) {
	t.Parallel()
	packed := pack([]byte("aa"))
	m := amqp091.Publishing{Body: bytes.Clone(packed), ContentEncoding: "gzip"}
	require.NoError(t, filtering(t.Context(), "cat", await.Bound).plan.Edit(&m))
	assert.Equal(t, packed, m.Body, "one that does not change is not packed again")
	require.NoError(t, filtering(t.Context(), "tr a b", await.Bound).plan.Edit(&m))
	text, err := unpack(m.Body)
	require.NoError(t, err)
	assert.Equal(t, "bb", string(text))
}

// ^C ends the command with everything that it has started.
func TestFilterBodyEndsWithTheRun(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	path := filepath.Join(t.TempDir(), "pid")
	done := make(chan error, 1)
	go func() {
		done <- filtering(ctx, "(echo $$ > "+path+".new; mv "+path+".new "+path+"; sleep 600)", time.Hour).
			plan.Edit(&amqp091.Publishing{})
	}()
	var text []byte
	require.Eventually(t, func() (ok bool) {
		var err error
		text, err = os.ReadFile(path)
		return err == nil
	}, await.Bound, 10*time.Millisecond)
	cancel()
	require.EqualError(t, <-done, "interrupted")
	group, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	assert.Eventually(t, func() bool { return syscall.Kill(-group, 0) != nil }, await.Bound, 10*time.Millisecond)
}

// What a command leaves behind ends when its message is refused.
func TestFilterBodyLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pid")
	o := filtering(t.Context(), "echo $$ > "+path+"; sleep 600 & echo x", await.Bound)
	err := o.plan.Edit(&amqp091.Publishing{})
	require.ErrorContains(t, err, "WaitDelay expired")
	group, err := strconv.Atoi(strings.TrimSpace(read(t, path)))
	require.NoError(t, err)
	assert.Eventually(t, func() bool { return syscall.Kill(-group, 0) != nil }, await.Bound, 10*time.Millisecond)
}

// A message that the command refuses in the run gets no body at all.
func TestFilterBodyThatFailsLaterIsNoOtherBody(t *testing.T) {
	t.Parallel()
	o := filtering(t.Context(), "mkdir "+filepath.Join(t.TempDir(), "once")+" && cat", await.Bound)
	require.NoError(t, o.plan.Edit(&amqp091.Publishing{Body: []byte("x")}))
	require.Error(t, o.plan.Edit(&amqp091.Publishing{Body: []byte("x")}))
	assert.Empty(t, o.remarks(dlq.Report{}))
}

func TestFilterBodyShowsWhatChanges(t *testing.T) {
	for name, test := range map[string]struct{ before, after, want string }{
		"JSON":   {`{"a":1,"b":2,"c":3,"d":4}`, `{"a":1,"b":2,"c":"3","d":4}`, "    \"b\": 2,|-   \"c\": 3,|+   \"c\": \"3\",|    \"d\": 4"},
		"blanks": {"{ }", "{}", "- { }|+ {}"},
		"text":   {"a", "b\nc", "- a|+ b|+ c"},
		"binary": {"\xff", "a", "1 byte become 1 byte"},
		"long":   {"y", strings.Repeat("x\n", 50), "- y" + strings.Repeat("|+ x", 19) + "|…"},
	} {
		changed := changedBody{"", []byte(test.before), []byte(test.after)}
		assert.Equal(t, test.want, strings.Join(changed.lines(), "|"), name)
	}
}

func TestFilterBodyOnABroker(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 6)
	command := `grep -v '"n":2' | sed 's/"n":\([3-9]\)/"N":\1/'`

	out, _ := p.ok("replay", p.main, "--filter-body", command)
	assert.Contains(t, out, "6 messages, of which 6 match; 5 can be")
	assert.Contains(t, out, "\n1           uuid-2     the command printed nothing\n",
		"grep is not the last of the pipe")
	command = `sed 's/"n":\([3-9]\)/"N":\1/' | grep -v '"n":2' || { echo it is 2 >&2; exit 3; }`
	out, errs := p.ok("replay", p.main, "--filter-body", command)
	assert.Contains(t, out, "6 messages, of which 6 match; 5 can be replayed")
	assert.Contains(t, out, "--filter-body: 3 changed, 2 unchanged, 1 refused\n")
	assert.Contains(t, out, "uuid-3:\n    {\n  -   \"n\": 3\n  +   \"N\": 3\n    }\n")
	assert.Contains(t, out, "uuid-5:\n")
	assert.Contains(t, out, "\n1           uuid-2     exit status 3: it is 2\n")
	assert.Contains(t, errs, "This was a dry run")

	undo := p.file("undo.jsonl")
	code, out, errs := p.run(nil, "replay", p.main, "--filter-body", command, "--undo", undo, "--yes")
	assert.Equal(t, cli.ExitIncomplete, code, errs)
	assert.Contains(t, out, "5 of 6 matching messages replayed")
	assert.Contains(t, out, "--filter-body: 3 changed, 2 unchanged, 1 refused\n")
	assert.Contains(t, out, "exit status 3: it is 2\n")
	assert.NotContains(t, errs, "another body")
	p.Has(p.main+suffix, 1)
	bodies := ""
	for _, d := range p.bodies(p.main, 5) {
		bodies += string(d.Body)
		assert.Equal(t, strings.Contains(string(d.Body), "N"), d.Headers[header.Edits] != nil)
	}
	assert.Equal(t, `{"n":0}{"n":1}{"N":3}{"N":4}{"N":5}`, bodies, "in their order")
	assert.NotContains(t, read(t, undo), `"N"`, "the undo file has them as they were")

	out, _ = p.ok("replay", p.main, "--filter-body", command, "--json")
	assert.Contains(t, out, `"edit_errors": [`)
	assert.Contains(t, out, `"why": "exit status 3: it is 2"`)
}

// On a terminal the command runs twice for each message: to show what it does, and to do it.
func TestFilterBodyMustGiveTheSameTwice(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	p.fill(p.main, 0, 2)
	file := p.file("calls")
	code, out, errs := p.run(func(s *cli.Session) {
		s.InIsTerminal, s.In = true, strings.NewReader("y\n")
	}, "replay", p.main, "--no-undo", "--filter-body", "echo x >> "+file+"; wc -l < "+file)
	assert.Equal(t, cli.ExitOK, code, errs)
	assert.Contains(t, out, "2 of 2 matching messages replayed")
	assert.Contains(t, errs, "--filter-body: 2 messages got another body than the command had made of the same one "+
		"before")
}

func TestFilterBodyFlags(t *testing.T) {
	t.Parallel()
	for text, args := range map[string][]string{
		"--body and --filter-body exclude": {"--filter-body", "cat", "--body", "-"},
		"--filter-timeout: must":           {"--filter-body", "cat", "--filter-timeout", "0s"},
		"--filter-timeout: wanted":         {"--filter-timeout", "3s", "--set-header", "a=b"},
		"--filter-body":                    {"--filter-body", ""},
	} {
		f := orders(deadLetters(2)...)
		code, errs := edit(t, f, nil, args...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs, text, args)
	}
	f := orders(deadLetters(2)...)
	code, errs := edit(t, f, nil, "--filter-body", "tr n m", "--set-header", "a=b")
	assert.Equal(t, cli.ExitOK, code, errs)
	require.Len(t, f.published, 2)
	assert.Equal(t, `{"m":2}`, string(f.published[1].Body))
	assert.Equal(t, "b", f.published[1].Headers["a"])
}
