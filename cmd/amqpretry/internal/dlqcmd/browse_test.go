package dlqcmd

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

func TestList(t *testing.T) {
	f := orders(deadLetters(2)...)
	f.deadLetters[1].Handler, f.deadLetters[1].Topic, f.deadLetters[1].UUID, f.deadLetters[1].LastFailure = "", "", "",
		time.Time{}
	f.deadLetters[1].Error = "first line\nsecond line"
	code, out, errs := f.run(t, nil, "list", "orders")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, `#  UUID    AGE    REASON     CALLS  REPLAYS  HANDLER/TOPIC  ERROR
1  uuid-1  1m00s  exhausted  4      0        charge/orders  card 1 declined
2  -       -      exhausted  4      0        -              first line …
`, out)
	assert.Equal(t, "orders.dlq: 2 messages\n", errs)
}

// One long name does not push the cells of all rows out of sight.
func TestListCutsLongNames(t *testing.T) {
	f := orders(deadLetters(2)...)
	f.deadLetters[1].UUID, f.deadLetters[1].Handler, f.deadLetters[1].Topic = strings.Repeat("ü", 127),
		strings.Repeat("h", 255), strings.Repeat("t", 255)
	code, out, _ := f.run(t, nil, "list", "orders")
	assert.Equal(t, cli.ExitOK, code)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 3)
	assert.Contains(t, lines[2], strings.Repeat("ü", 64)+"…  ")
	assert.Contains(t, lines[2], strings.Repeat("h", 64)+"…  ")
	for _, line := range lines {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 200)
	}
	_, out, _ = f.run(t, nil, "list", "orders", "--json")
	assert.Contains(t, out, strings.Repeat("ü", 127), "a program gets all of it")
}

func TestListSaysHowManyMore(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		rows int
		says string
	}{
		"default": {nil, 20, "orders.dlq: 20 of 1,234 messages; --limit lists more\n"},
		"limit":   {[]string{"--limit", "3"}, 3, "orders.dlq: 3 of 1,234 messages; --limit lists more\n"},
		"all":     {[]string{"--limit", "0"}, 1234, "orders.dlq: 1,234 messages\n"},
		"filtered": {[]string{"--older-than", "1000m"}, 20, "orders.dlq: 20 of 234 messages; --limit lists " +
			"more\n"},
		"all that fit": {[]string{"--uuid", "uuid-7"}, 1, "orders.dlq: 1 message of 1,234\n"},
		"none":         {[]string{"--uuid", "uuid-0"}, 0, "orders.dlq: no message matches, of 1,234\n"},
		"just as many": {[]string{"--limit", "1234"}, 1234, "orders.dlq: 1,234 messages\n"},
		"filter, limit": {[]string{"--limit", "1", "--uuid", "uuid-1,uuid-2"}, 1, "orders.dlq: 1 of 2 messages; " +
			"--limit lists more\n"},
	} {
		t.Run(name, func(t *testing.T) {
			f := orders(deadLetters(1234)...)
			code, out, errs := f.run(t, nil, append([]string{"list", "orders"}, test.args...)...)
			assert.Equal(t, cli.ExitOK, code)
			assert.Equal(t, test.says, errs)
			assert.Equal(t, test.rows, strings.Count(out, "uuid-"))

			code, out, errs = f.run(t, nil, append([]string{"list", "orders", "--json"}, test.args...)...)
			assert.Equal(t, cli.ExitOK, code)
			assert.Equal(t, test.rows, strings.Count(out, "\n"), "one line for each")
			if test.rows < 1234 && test.rows > 1 {
				assert.Equal(t, test.says, errs, "a program may see that these are not all")
			}
			for line := range strings.Lines(out) {
				var deadLetter struct {
					Position int
					Failure  struct{ UUID, Reason string }
				}
				require.NoError(t, json.Unmarshal([]byte(line), &deadLetter))
				assert.Equal(t, "exhausted", deadLetter.Failure.Reason)
			}
		})
	}
}

func TestListOfNothing(t *testing.T) {
	code, out, errs := orders().run(t, nil, "list", "orders")
	assert.Equal(t, cli.ExitOK, code)
	assert.Empty(t, out)
	assert.Equal(t, "orders.dlq: no messages\n", errs)
}

func TestNameOfADeadLetterQueue(t *testing.T) {
	f := orders()
	f.missing = "orders.dlq.dlq"
	for _, args := range [][]string{{"list", "orders.dlq"}, {"show", "orders.dlq", "u"}, {"replay", "orders.dlq"},
		{"purge", "orders.dlq", "--all"}} {
		code, _, errs := f.run(t, nil, args...)
		assert.Equal(t, cli.ExitUsage, code)
		assert.Contains(t, errs,
			`"orders.dlq" looks like a dead-letter queue, and "orders.dlq.dlq" does not exist: QUEUE is the main queue, so pass "orders"`)
	}

	f.missing = "order.dlq"
	code, _, errs := f.run(t, nil, "list", "order")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, `there is no such queue`)
	assert.Contains(t, errs, "`amqpretry dlq list` lists all dead-letter queues")

	f.missing = ""
	code, _, _ = f.run(t, nil, "list", "orders.dlq")
	assert.Equal(t, cli.ExitOK, code, "a main queue may be called so")
	code, _, errs = f.run(t, nil, "list", "orders", "--dead-letter-queue", "graveyard")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, "graveyard: no messages\n", errs)
}

func TestWrongUsageOpensNothing(t *testing.T) {
	f := orders()
	for _, args := range [][]string{
		{"list", "--reason", "exhausted"}, {"list", "--dead-letter-queue", "x"}, {"list", "a", "b"},
		{"list", "a", "--limit", "-1"}, {"list", "a", "--reason", "x"}, {"list", ""},
		{"stat"}, {"stat", "a", "--by", "age"}, {"stat", "a", "--top", "-1"}, {"stat", "a", "--older-than", "0"},
		{"show", "a"}, {"show", "a", ""}, {"show", "a", "u", "v"}, {"show", "a", "0"},
		{"show", "a", "u", "--body", "--json"},
		{"replay"}, {"replay", "a", "--watch", "1s"}, {"replay", "a", "--tolerate", "1"},
		{"replay", "a", "--canary", "1", "--tolerate", "1"}, {"replay", "a", "--canary", "-1"},
		{"replay", "a", "--canary", "1", "--watch", "0s"}, {"replay", "a", "--rate", "0"}, {"replay", "a", "--to", ""},
		{"replay", "a", "--yes", "--dry-run"},
		{"replay", "a", "--undo", "x", "--no-undo"}, {"replay", "a", "--body", "x", "--edit"},
		{"replay", "a", "--edit", "--edit-all"}, {"replay", "a", ""}, {"replay", "a", "1", "--yes"},
		{"replay", "a", "u", "--canary", "1"}, {"purge", "a", "u", "--all"}, {"purge", "a", "1", "--yes"},
		{"move", "a", "1", "--to", "b", "--yes"}, {"export", "a", "0"},
		{"purge", "a"}, {"purge", "a", "--yes"}, {"purge", "a", "--all", "--reason", "exhausted"},
		{"move", "a"}, {"move", "a", "--to", ""},
		{"export"}, {"export", "a", "--limit", "-1"},
		{"import", "a"}, {"import", "a", ""}, {"import", "a", "-", "--restart"}, {"import", "a", "x", "--to", ""},
	} {
		code, out, errs := f.run(t, nil, args...)
		assert.Equal(t, cli.ExitUsage, code, args)
		assert.Empty(t, out, args)
		assert.Contains(t, errs, "amqpretry: ", args)
	}
	assert.Zero(t, f.opened)
}

// brokenPipe is what `| head` leaves.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestNobodyReadsOn(t *testing.T) {
	for _, args := range [][]string{
		{"list", "orders"}, {"list", "orders", "--json"}, {"export", "orders"}, {"show", "orders", "uuid-1"},
		{"show", "orders", "uuid-1", "--body"},
		{"stat", "orders"},
	} {
		code, _, errs := orders(deadLetters(3)...).run(t, func(w *world) { w.Out = brokenPipe{} }, args...)
		assert.Equal(t, cli.ExitOK, code, args)
		assert.Empty(t, errs, args)
	}
}

func TestDeadLetterQueuesAreFoundByName(t *testing.T) {
	var queues []httpapi.Queue
	for _, name := range []string{"a", "a.dlq", "a.dlq.dlq", "gone.dlq", ".dlq", "b", "b.retry.30s", "dlq", "a.landing",
		"a.dlq.landing", "amqpretry.delay.v1.100ms.10x6.unroutable", "amqpretry.delay.v1.100ms.10x6.30s"} {
		queues = append(queues, httpapi.Queue{Name: name})
	}
	assert.Equal(t, []line{
		{Queue: "a.dlq", MainQueue: "a", MainQueueExists: true},
		{Queue: "a.dlq.dlq", MainQueue: "a.dlq", MainQueueExists: true},
		{Queue: "gone.dlq", MainQueue: "gone"},
	}, deadLetterQueues(queues))
}

func TestListOfAllQueuesNeedsTheManagementAPI(t *testing.T) {
	code, _, errs := orders().run(t, nil, "list")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, "set AMQP_MANAGEMENT_URL, or --management-url")
}

func TestStat(t *testing.T) {
	f := orders(deadLetters(1234)...)
	for i := range f.deadLetters {
		if i%2 == 0 {
			f.deadLetters[i].Reason = "permanent"
		}
		if i < 10 {
			f.deadLetters[i].Topic = ""
		}
	}
	code, out, errs := f.run(t, nil, "stat", "orders", "--by", "reason,topic", "--newer-than", "700m")
	assert.Equal(t, cli.ExitOK, code)
	assert.Empty(t, errs)
	assert.Equal(t, `queue       orders.dlq
main queue  orders
messages    1,234
matching    699
bodies      6,183 bytes
oldest      2026-11-21T17:33:00Z (11h39m ago)
newest      2026-11-22T05:12:00Z (0s ago)

MESSAGES  SHARE   REASON
350       50.1 %  permanent
349       49.9 %  exhausted

MESSAGES  SHARE   TOPIC
689       98.6 %  orders
10        1.4 %   (not told)
`, out)

	for i, text := range map[int]string{3: "order 17 is gone", 5: "order 18 is gone"} {
		l := &f.deadLetters[i]
		l.Error, l.ErrorType, l.Handler = text, "*x.Error", "bill"
	}
	id := f.deadLetters[3].Fingerprint().ID
	code, out, _ = f.run(t, nil, "stat", "orders", "--by", "fingerprint", "--fingerprint", id)
	assert.Equal(t, cli.ExitOK, code)
	_, table, _ := strings.Cut(out, "\n\n")
	assert.Equal(t, "MESSAGES  SHARE    FINGERPRINT   ERROR TYPE  HANDLER  ERROR\n"+
		"2         100.0 %  "+id+"  *x.Error    bill     order <n> is gone\n", table)
	code, out, _ = f.run(t, nil, "stat", "orders", "--by", "fingerprint", "--top", "1")
	assert.Equal(t, cli.ExitOK, code)
	assert.Contains(t, out, "(others: 1 name; --top 0 prints all)\n")
	code, _, errs = f.run(t, nil, "stat", "orders", "--fingerprint", "12")
	assert.Equal(t, cli.ExitUsage, code)
	assert.Contains(t, errs, `12 hexadecimal digits in lower case`)

	code, out, _ = f.run(t, nil, "stat", "orders", "--json")
	assert.Equal(t, cli.ExitOK, code)
	var stat map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &stat))
	assert.Equal(t, map[string]any{"exhausted": 617., "permanent": 617.}, stat["by_reason"].(map[string]any)["by_name"])

	code, out, _ = f.run(t, nil, "stat", "orders", "--uuid", "nobody")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, "queue       orders.dlq\nmain queue  orders\nmessages    1,234\nmatching    0\n", out)
}

func TestStatHidesNothing(t *testing.T) {
	counts := dlq.Counts{ByName: map[string]int{"a": 5, "b": 3, "c": 2, "d": 1}, Others: 0}
	assert.Equal(t, [][]string{{"5", "45.5 %", "a"}, {"3", "27.3 %", "b"},
		{"3", "27.3 %", "(others: 2 names; --top 0 prints all)"}}, countRows(counts, 11, 2))
	assert.Len(t, countRows(counts, 11, 0), 4)
	counts.Others = 9
	assert.Equal(t, []string{"9", "45.0 %", "(others: more than 0 names)"}, countRows(counts, 20, 0)[4])
	assert.Equal(t, []string{"12", "60.0 %", "(others: more than 2 names)"}, countRows(counts, 20, 2)[2])
}

func TestShow(t *testing.T) {
	l := deadLetter(1)
	l.Error = "card declined\n\tat charge.go:17"
	l.Replays, l.Expiration, l.Removed = 2, "5000", "trace"
	before := "acme"
	l.Edits = []dlq.Edit{{At: now, By: "ada@host", Size: 7, SHA256: "abc", Body: `{"n":0}`,
		Headers: map[string]*string{"tenant": &before, "new": nil}}}
	l.Message.Headers["list"] = []any{int32(1), "two", amqp091.Table{"x": nil}}
	l.Message.Headers["when"] = now
	l.Message.Headers["price"] = amqp091.Decimal{Scale: 2, Value: 1234}
	code, out, errs := orders(l).run(t, nil, "show", "orders", "uuid-1")
	assert.Equal(t, cli.ExitOK, code)
	assert.Empty(t, errs)
	assert.Equal(t, `Message
  uuid             uuid-1
  place            1 of orders.dlq
  reason           exhausted
  error            card declined
                   \tat charge.go:17
  error type       *cards.DeclinedError
  fingerprint      0f58f7e6d601
  handler          charge
  topic            orders
  queue            orders
  host             host-1
  calls            4
  replays          2
  first failure    2026-11-22T03:12:00Z (2h00m ago)
  last failure     2026-11-22T05:11:00Z (1m00s ago)
  first came by    exchange "events", routing key "order.created"
  expiration       5000 ms
  came here by     exchange "orders.retry", routing key ""
  removed headers  trace

History
  CALL  AT                        REASON  ERROR TYPE  ERROR
  1     2026-11-22T03:12:00.000Z  -       *url.Error  timeout
  …
  4     2026-11-22T05:12:00.000Z  -       -           declined

Properties
  content type   application/json
  delivery mode  2 (persistent)

Headers
  NAME             TYPE     VALUE
  list             array    [1,"two",{"x":null}]
  price            decimal  12.34
  tenant           string   acme
  when             time     2026-11-22T05:12:00Z
  amqpretry-count  string   -1

Edited before a replay
  at                    2026-11-22T05:12:00.000Z
  by                    ada@host
  body before           7 bytes, SHA-256 abc
  header new before     (it was not there)
  header tenant before  acme
  text before           {"n":0}

Body (7 bytes)
{
  "n": 1
}
`, out)
}

// What is printed of a body has a bound, however it was made: each level of JSON makes each of its
// lines longer.
func TestShowOfHugeBodies(t *testing.T) {
	for name, body := range map[string]string{
		"nested": strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999),
		"wide": strings.Repeat("[", maxDepth) + strings.Repeat("1,", 100_000) + "1" +
			strings.Repeat("]", maxDepth),
		"text":       strings.Repeat("ü", 2_000_000),
		"large JSON": "[" + strings.Repeat("1,", 4_000_000) + "1]",
		"binary":     strings.Repeat("\x00", 4_000_000),
	} {
		l := deadLetter(1)
		l.Message.Body = []byte(body)
		code, out, _ := orders(l).run(t, nil, "show", "orders", "uuid-1")
		assert.Equal(t, cli.ExitOK, code)
		assert.Less(t, len(out), 20<<20, name)
		assert.Equal(t, len(body) > maxText, strings.Contains(out, "more: --body gives all of it"), name)
		assert.True(t, utf8.ValidString(out))
	}
	for text, deep := range map[string]int{`"[[["`: 0, `{"a\\":["\"[",[1]]}`: 3, `[[]]`: 2, ``: 0, `]]][`: 0} {
		assert.Equal(t, deep, max(0, depth([]byte(text))), text)
	}
}

func TestShowByPosition(t *testing.T) {
	f := orders(deadLetters(3)...)
	code, out, _ := f.run(t, nil, "show", "orders", "3", "--body")
	assert.Equal(t, cli.ExitOK, code)
	assert.Equal(t, `{"n":3}`, out, "byte for byte")

	code, _, errs := f.run(t, nil, "show", "orders", "4")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, "has no message at position 4: 3 are visible")

	code, _, errs = f.run(t, nil, "show", "orders", "uuid-4")
	assert.Equal(t, cli.ExitFailed, code)
	assert.Contains(t, errs, `no message with the UUID "uuid-4" among the 3`)

	code, out, _ = f.run(t, nil, "show", "orders", "2", "--json")
	assert.Equal(t, cli.ExitOK, code)
	var shown struct {
		Failure struct{ UUID string }
		Body    string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &shown))
	assert.Equal(t, "uuid-2", shown.Failure.UUID)
	assert.JSONEq(t, `{"n":2}`, shown.Body)
}

func TestBodies(t *testing.T) {
	big := strings.Repeat("\x00\xff", 5000)
	for name, test := range map[string]struct{ body, want string }{
		"nothing":       {"", "(empty)\n"},
		"text":          {"hello\nworld\n", "hello\nworld\n"},
		"windows":       {"a\r\nb", "a\nb\n"},
		"JSON":          {`[1,{"a":1.50}]`, "[\n  1,\n  {\n    \"a\": 1.50\n  }\n]\n"},
		"nearly JSON":   {`{"a":`, `{"a":` + "\n"},
		"binary":        {"\x00\x01\x02ab", "00000000  00 01 02 61 62                                    |...ab|\n"},
		"large binary":  {big, "… 5,904 bytes more: --body gives all of it to a file or a pipe\n"},
		"escape":        {"a\x1b[31mb", `a\x1b[31mb` + "\n"},
		"right to left": {"{\"a\":\"\u202eb\"}", "{\n  \"a\": \"\\u202eb\"\n}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			l := deadLetter(1)
			l.Message.Body = []byte(test.body)
			code, out, _ := orders(l).run(t, nil, "show", "orders", "uuid-1")
			assert.Equal(t, cli.ExitOK, code)
			assert.True(t, strings.HasSuffix(out, test.want), out)

			_, out, _ = orders(l).run(t, nil, "show", "orders", "uuid-1", "--body")
			assert.Equal(t, test.body, out, "to a pipe: byte for byte")
			_, out, _ = orders(l).run(t, terminal(""), "show", "orders", "uuid-1", "--body")
			assert.True(t, strings.HasSuffix(out, test.want), "to a terminal: safe")
			assert.NotContains(t, out, "Message\n")
		})
	}
}
