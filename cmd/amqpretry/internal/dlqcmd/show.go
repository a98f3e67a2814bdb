package dlqcmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

func (t *tool) show() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show QUEUE MESSAGE",
		Short: "Show one dead letter in full",
		Long: `Show one dead letter: its failure, the recorded failed calls, its properties, its headers with their
types, the edits before replays, and the body. It stays in the queue.

` + messagesHelp + ` If several messages share a UUID, the oldest is shown.

JSON bodies up to 256 KiB and 64 levels are printed indented. Of other texts the first 256 KiB are
printed, and of binary bodies a hex dump of the first 4 KiB.

With --body: only the body, byte for byte unless it goes to a terminal. With --json: one object.`,
		Example: `  amqpretry dlq show orders 4f6c8a52-9d0e-4b2b-a1de-7a8a3f1c2b10
  amqpretry dlq show orders 1
  amqpretry dlq show orders 4f6c8a52-9d0e-4b2b-a1de-7a8a3f1c2b10 --body > order.json`,
		Args: cobra.RangeArgs(1, 2),
	}
	body := cmd.Flags().Bool("body", false, "print only the body")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		m, err := parseMessages(args[1:])
		switch {
		case err != nil:
			return err
		case !m.given():
			return cli.Usage("wanted MESSAGE, a UUID or a position: `amqpretry dlq list %s` lists both",
				quote(args[0]))
		case *body && t.JSON:
			return cli.Usage("--body and --json exclude each other")
		}

		return t.with(cmd.Context(), args[0], func(q queue) error {
			deadLetter, err := t.named(cmd.Context(), q, m)
			if err != nil {
				t.noteUnseenNow(cmd.Context(), q, 0)
				return err
			}
			switch {
			case t.JSON:
				return t.PrintJSON(deadLetter)
			case *body && !t.OutIsTerminal:
				_, err := t.Out.Write(deadLetter.Message.Body)
				return err
			case *body:
				return t.printBody(deadLetter.Message.Body)
			default:
				return t.printDeadLetter(q, deadLetter)
			}
		})
	}

	return cmd
}

// named gives the only message that is named, the oldest one if several share its UUID.
func (t *tool) named(ctx context.Context, q queue, m messages) (dlq.DeadLetter, error) {
	if len(m.uuids) > 0 {
		return q.Get(ctx, m.uuids[0])
	}
	found, err := t.find(ctx, q, m)
	if err != nil {
		return dlq.DeadLetter{}, err
	}

	return found[0], nil
}

func (t *tool) printDeadLetter(q queue, l dlq.DeadLetter) error {
	p := &printer{tool: t}
	p.section("Message", t.about(q, l))

	return p.message(l)
}

// message prints all of a message behind its first section.
func (p *printer) message(l dlq.DeadLetter) error {
	p.table("History", []string{"call", "at", "reason", "error type", "error"}, history(l))
	p.section("Properties", properties(&l.Message))
	p.table("Headers", []string{"name", "type", "value"}, headers(l.Message.Headers))
	for _, edit := range l.Edits {
		p.section("Edited before a replay", edited(edit))
	}
	p.title(fmt.Sprintf("Body (%s)", units.Many(len(l.Message.Body), "byte")))
	if p.err == nil {
		p.err = p.tool.printBody(l.Message.Body)
	}

	return p.err
}

// printer prints until there is an error.
type printer struct {
	tool  *tool
	began bool
	err   error
}

func (p *printer) title(text string) {
	if p.err == nil && p.began {
		_, p.err = fmt.Fprintln(p.tool.Out)
	}
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.tool.Out, text)
	}
	p.began = true
}

// section prints those lines that have a value.
func (p *printer) section(title string, lines [][2]string) {
	var told [][2]string
	for _, line := range lines {
		if line[1] != "" {
			told = append(told, [2]string{"  " + line[0], line[1]})
		}
	}
	if len(told) == 0 {
		return
	}
	p.title(title)
	if p.err == nil {
		p.err = p.tool.pairs(told)
	}
}

func (p *printer) table(title string, header []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	p.title(title)
	if p.err == nil {
		p.err = p.tool.grid(append([][]string{upper(header)}, rows...))
	}
}

func (t *tool) about(q queue, l dlq.DeadLetter) [][2]string {
	now := t.Now()
	return [][2]string{
		{"uuid", cmp.Or(l.UUID, "-")},
		{"place", fmt.Sprintf("%s of %s", units.Thousands(l.Position), q.Name())},
		{"reason", cmp.Or(string(l.Reason), "-")},
		{"error", l.Error},
		{"error type", l.ErrorType},
		{"fingerprint", l.Fingerprint().ID},
		{"handler", l.Handler},
		{"topic", l.Topic},
		{"queue", l.Queue},
		{"host", l.Host},
		{"calls", strconv.Itoa(l.Calls)},
		{"replays", strconv.Itoa(l.Replays)},
		{"parked", parked(l, now)},
		{"first failure", told(!l.FirstFailure.IsZero(), moment(l.FirstFailure, now))},
		{"last failure", moment(l.LastFailure, now)},
		{"age counts from", told(!l.Since.IsZero(), moment(l.Since, now))},
		{"deadline", stamp(l.Deadline, timeFormat)},
		{"first came by", route(dlq.Route{Exchange: l.Exchange, RoutingKey: l.RoutingKey})},
		{"expiration", told(l.Expiration != "", l.Expiration+" ms")},
		{"user id", l.UserID},
		{"came here by", route(l.CameBy)},
		{"trace", l.Trace},
		{"removed headers", l.Removed},
		{"cannot be read", unreadable(l)},
	}
}

// parked tells whether a message is parked, by whom and why, or who has unparked it.
func parked(l dlq.DeadLetter, now time.Time) string {
	p := l.Parking()
	switch {
	case p == nil && l.IsParked():
		return fmt.Sprintf("by its %s", units.Many(l.Replays, "replay"))
	case p == nil:
		return ""
	}
	text := map[bool]string{true: "yes", false: "no"}[l.IsParked()] + ": " + moment(p.At, now)
	if p.By != "" {
		text += " by " + p.By
	}
	if p.Note != "" {
		text += ": " + p.Note
	}

	return text
}

func unreadable(l dlq.DeadLetter) string {
	return told(l.Unreadable != "", l.Unreadable+" (headers: they are not shown, and the message cannot be copied)")
}

func told(is bool, text string) string {
	if !is {
		return ""
	}
	return text
}

func route(r dlq.Route) string {
	switch {
	case r == dlq.Route{}:
		return ""
	case r.Exchange == "":
		return fmt.Sprintf("the default exchange, routing key %q", r.RoutingKey)
	default:
		return fmt.Sprintf("exchange %q, routing key %q", r.Exchange, r.RoutingKey)
	}
}

func history(l dlq.DeadLetter) [][]string {
	var rows [][]string
	for i, attempt := range l.History {
		if i > 0 && attempt.Number > l.History[i-1].Number+1 {
			rows = append(rows, []string{"…", "", "", "", ""})
		}
		rows = append(rows, []string{strconv.Itoa(attempt.Number), cmp.Or(stamp(attempt.At, timeFormat), "-"),
			cmp.Or(string(attempt.Reason), "-"), cmp.Or(attempt.Type, "-"), attempt.Error})
	}
	return rows
}

// stamp is a time; nothing for none.
func stamp(at time.Time, format string) string { return told(!at.IsZero(), at.UTC().Format(format)) }

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

func properties(m *amqp091.Publishing) [][2]string {
	number := func(n uint8) string { return told(n != 0, strconv.Itoa(int(n))) }
	return [][2]string{
		{"content type", m.ContentType},
		{"content encoding", m.ContentEncoding},
		{"delivery mode", map[uint8]string{amqp091.Transient: "1 (transient)", amqp091.Persistent: "2 " +
			"(persistent)"}[m.DeliveryMode]},
		{"priority", number(m.Priority)},
		{"correlation id", m.CorrelationId},
		{"reply to", m.ReplyTo},
		{"expiration", m.Expiration},
		{"message id", m.MessageId},
		{"timestamp", stamp(m.Timestamp, time.RFC3339)},
		{"type", m.Type},
		{"user id", m.UserId},
		{"app id", m.AppId},
	}
}

func edited(e dlq.Edit) [][2]string {
	lines := [][2]string{{"at", stamp(e.At, timeFormat)}, {"by", e.By}}
	if e.SHA256 != "" {
		size := units.Many(e.Size, "byte")
		lines = append(lines, [2]string{"body before", fmt.Sprintf("%s, SHA-256 %s", size, e.SHA256)})
	}
	for _, name := range sortedKeys(e.Headers) {
		before := "(it was not there)"
		if value := e.Headers[name]; value != nil {
			before = *value
		}
		lines = append(lines, [2]string{"header " + name + " before", before})
	}
	for _, name := range sortedKeys(e.Properties) {
		lines = append(lines, [2]string{strings.ReplaceAll(name, "_", " ") + " before",
			cmp.Or(e.Properties[name], "(it was not there)")})
	}
	if e.Body != "" {
		lines = append(lines, [2]string{"text before", e.Body})
	}

	return lines
}

// How much of a body is printed: of one that is text, and of one that is none.
const (
	maxText = 256 << 10
	maxDump = 4096
)

// maxDepth is how deep JSON may be that is indented: each level makes each of its lines longer.
const maxDepth = 64

// printBody prints a body for people.
func (t *tool) printBody(body []byte) error {
	var text string
	shown := len(body)
	switch indented := new(bytes.Buffer); {
	case len(body) == 0:
		text = "(empty)"
	case !isText(body):
		shown = min(shown, maxDump)
		text = strings.TrimSuffix(hex.Dump(body[:shown]), "\n")
	case shown <= maxText && depth(body) <= maxDepth && json.Indent(indented, body, "", "  ") == nil:
		text = indented.String()
	default:
		shown = min(shown, maxText)
		text = strings.ToValidUTF8(string(body[:shown]), "")
	}
	if rest := len(body) - shown; rest > 0 {
		text += fmt.Sprintf("\n… %s more: --body gives all of it to a file or a pipe", units.Many(rest, "byte"))
	}
	_, err := fmt.Fprintln(t.Out, strings.TrimSuffix(safeLines(text), "\n"))

	return err
}

// depth is how deep arrays and objects of a JSON text are nested.
func depth(text []byte) int {
	deepest, now, quoted := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case quoted:
		case c == '[' || c == '{':
			now++
			deepest = max(deepest, now)
		case c == ']' || c == '}':
			now--
		}
	}

	return deepest
}

// isText tells whether people can read it: UTF-8 with hardly any control characters.
func isText(body []byte) bool {
	if !utf8.Valid(body) {
		return false
	}
	controls := 0
	for _, r := range string(body) {
		if unicode.IsControl(r) && !strings.ContainsRune("\n\r\t\x1b", r) {
			controls++
		}
	}
	return controls <= len(body)/20
}
