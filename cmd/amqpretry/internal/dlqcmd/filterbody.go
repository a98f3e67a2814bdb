package dlqcmd

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/diff"
	"github.com/amqpretry/watermill-retry/internal/units"
)

const (
	// mostBody is the largest body that a command may give: RabbitMQ takes no larger ones by
	// default.
	mostBody = 128 << 20
	// mostReason is how much of what it says on its standard error is kept.
	mostReason = 500
	// filterTimeout is how long a command may take by default.
	filterTimeout = 10 * time.Second
	// samples are how many changes a dry run shows, and sampleLines how much of each.
	samples, sampleLines = 3, 20
)

// bodyFilter changes bodies with a command of the user.
type bodyFilter struct {
	ctx     context.Context
	command string
	timeout time.Duration

	seed     maphash.Seed
	gave     map[uint64]uint64 // hashes of bodies, and of what became of them
	unsteady int               // how often a body became another one than before
	changed  []changedBody     // the first ones
}

type changedBody struct {
	uuid          string
	before, after []byte
}

// filterBodies lets a command change what is replayed.
func (e *operation) filterBodies(ctx context.Context, command string, timeout time.Duration) {
	f := &bodyFilter{ctx: ctx, command: command, timeout: timeout, seed: maphash.MakeSeed(), gave: map[uint64]uint64{}}
	watch, remarks := e.plan.Edit, e.remarks
	e.filter, e.plan.Edit = f, func(m *amqp091.Publishing) error { return errors.Join(watch(m), f.edit(m)) }
	e.remarks = func(r dlq.Report) []string {
		all := remarks(r)
		if f.unsteady > 0 {
			all = append(all, fmt.Sprintf("--filter-body: %s got another body than the command had made of the same "+
				"one before, as in the dry run", units.Many(f.unsteady, "message")))
		}
		return all
	}
}

// edit changes the body of a message. One that is packed comes to the command unpacked.
func (f *bodyFilter) edit(m *amqp091.Publishing) (err error) {
	packed := strings.EqualFold(m.ContentEncoding, "gzip")
	before := m.Body
	if packed {
		if before, err = unpack(m.Body); err != nil {
			return fmt.Errorf("content encoding gzip: %w", err)
		}
	}
	after, err := f.run(before)
	f.compare(before, after, err)
	if err != nil || bytes.Equal(before, after) {
		return err
	}
	if len(f.changed) < samples {
		uuid, _ := m.Headers["_watermill_message_uuid"].(string)
		f.changed = append(f.changed, changedBody{cmp.Or(uuid, m.MessageId, "without UUID"), before, after})
	}
	if m.Body = after; packed {
		m.Body = pack(after)
	}

	return nil
}

// compare notes bodies of which the command does not make the same each time.
func (f *bodyFilter) compare(before, after []byte, err error) {
	is := maphash.Bytes(f.seed, after)
	if err != nil {
		is = 0
	}
	body := maphash.Bytes(f.seed, before)
	if was, known := f.gave[body]; known && was != is && err == nil { // else it stays
		f.unsteady++
	}
	f.gave[body] = is
}

// run gives what the command makes of a body, or why it does not.
func (f *bodyFilter) run(body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(f.ctx, f.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", f.command)
	out, said := &bounded{most: mostBody}, &bounded{most: mostReason, cuts: true}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(body), out, said
	cmd.WaitDelay = time.Second // what it leaves behind may keep its output open
	asGroup(cmd)
	err := cmd.Run()
	if err != nil && cmd.Process != nil {
		_ = cmd.Cancel() // what it has left behind
	}
	switch {
	case f.ctx.Err() != nil:
		return nil, errors.New("interrupted")
	case ctx.Err() != nil:
		return nil, fmt.Errorf("the command took longer than %s (--filter-timeout)", f.timeout)
	case out.over:
		return nil, fmt.Errorf("the command printed more than %d MiB", out.most>>20)
	case err != nil:
		words := strings.Join(strings.Fields(said.text.String()), " ")
		return nil, errors.New(strings.TrimSuffix(err.Error()+": "+words, ": "))
	case out.text.Len() == 0 && len(body) > 0: // jq's select, or a grep that is the last of a pipe
		return nil, errors.New("the command printed nothing")
	}

	if !bytes.HasSuffix(body, []byte("\n")) { // commands end the last line
		return bytes.TrimSuffix(out.text.Bytes(), []byte("\n")), nil
	}

	return out.text.Bytes(), nil
}

// bounded takes so many bytes, and forgets the others or refuses them.
type bounded struct {
	text       bytes.Buffer // not embedded: its ReadFrom takes all
	most       int
	cuts, over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	room := b.most - b.text.Len()
	if b.over = b.over || len(p) > room; b.over && !b.cuts {
		return 0, io.ErrShortWrite
	}
	_, _ = b.text.Write(p[:min(len(p), room)]) // to memory

	return len(p), nil
}

func unpack(body []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, mostBody+1))
	if err == nil && len(text) > mostBody {
		err = fmt.Errorf("more than %d MiB unpacked", mostBody>>20)
	}

	return text, err
}

func pack(text []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(text) // to memory
	_ = w.Close()

	return b.Bytes()
}

// printFiltered counts what the command has made of n messages.
func (t *tool) printFiltered(e *operation, r dlq.Report, n int) error {
	if e.filter == nil {
		return nil
	}
	refused := 0
	for _, failure := range r.EditErrors {
		refused += failure.Messages
	}

	return t.printSafe("--filter-body: %s changed, %s unchanged, %s refused", units.Thousands(r.Edited),
		units.Thousands(max(0, n-r.Edited)), units.Thousands(refused))
}

// printSamples shows the first changes.
func (t *tool) printSamples(f *bodyFilter) error {
	if f == nil {
		return nil
	}
	for _, c := range f.changed {
		if err := t.printSafe("%s:", c.uuid); err != nil {
			return err
		}
		for _, line := range c.lines() {
			if err := t.printSafe("  %s", shorten(line, maxText)); err != nil {
				return err
			}
		}
	}

	return nil
}

// lines are the lines that differ, with one line around them.
func (c changedBody) lines() (lines []string) {
	if !isText(c.before) || !isText(c.after) {
		return []string{units.Many(len(c.before), "byte") + " become " + units.Many(len(c.after), "byte")}
	}
	before, isJSON := readable(c.before)
	after, stays := readable(c.after)
	if !isJSON || !stays || before == after { // but for blanks
		before, after = string(c.before), string(c.after)
	}
	all := diff.Lines(before, after)
	isChange := func(l diff.Line) bool { return l.Sign != " " }
	for i, line := range all {
		if !slices.ContainsFunc(all[max(0, i-1):min(len(all), i+2)], isChange) {
			continue
		}
		if len(lines) == sampleLines {
			return append(lines, "…")
		}
		lines = append(lines, line.Sign+" "+cli.Safe(line.Text))
	}

	return lines
}

// readable indents a body that is JSON.
func readable(body []byte) (text string, isJSON bool) {
	var indented bytes.Buffer
	isJSON = depth(body) <= maxDepth && json.Indent(&indented, body, "", "  ") == nil

	return indented.String(), isJSON
}
