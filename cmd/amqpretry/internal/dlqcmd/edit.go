package dlqcmd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/units"
)

// edits are what a replay is to change.
type edits struct {
	body        string
	set, remove []string
	editor, all bool
	others      []string // further flags of the command, without filters
}

func (e *edits) add(cmd *cobra.Command) {
	cmd.Flags().Var(cli.Text(&e.body), "body", "`file` with the new body; - is standard input")
	cmd.Flags().BoolVar(&e.editor, "edit", false, "open the body in $VISUAL or $EDITOR")
	cmd.Flags().StringArrayVar(&e.set, "set-header", nil, "header to set, `name=value`, as text; repeatable")
	cmd.Flags().StringArrayVar(&e.remove, "remove-header", nil, "`name` of a header to remove; repeatable")
	cmd.Flags().BoolVar(&e.all, "edit-all", false, "allow the edit of several messages")
	cmd.MarkFlagsMutuallyExclusive("body", "edit")
	cmd.MarkFlagsMutuallyExclusive("edit", "edit-all")
}

// change is what is done to a message: one that is prepared before any is touched.
type change struct {
	body    []byte
	newBody bool
	set     map[string]string
	remove  []string
	removed map[string]bool // those that a message had
}

func (c *change) any() bool { return c.newBody || len(c.set)+len(c.remove) > 0 }

// apply is called by one goroutine at a time.
func (c *change) apply(m *amqp091.Publishing) error {
	if c.newBody {
		m.Body = c.body
	}
	for _, name := range c.remove {
		if _, has := m.Headers[name]; has {
			c.removed[name] = true
			delete(m.Headers, name)
		}
	}
	for name, value := range c.set {
		if m.Headers == nil {
			m.Headers = amqp091.Table{}
		}
		m.Headers[name] = value
	}

	return nil
}

// remarks are what was done otherwise than the flags sound.
func (c *change) remarks(o outcome) []string {
	var all []string
	for _, name := range c.remove {
		if o.Done > 0 && !c.removed[name] {
			all = append(all, fmt.Sprintf("--remove-header %s: none of the %s had it", name,
				units.Many(o.Done, "message")))
		}
	}
	return all
}

// edit prepares what a replay is to change, and narrows the filter to the one message that it is
// for.
func (t *tool) edit(ctx context.Context, q queue, filter dlq.Filter, e edits, c *change) (_ dlq.Filter,
	_ func(*amqp091.Publishing) error, err error) {
	if !c.any() && !e.editor {
		return filter, nil, nil
	}
	if e.body != "" {
		if c.body, err = t.read(e.body); err != nil {
			return filter, nil, fmt.Errorf("--body: %w", err)
		}
	}
	if e.all {
		return filter, c.apply, nil
	}

	deadLetter, err := t.single(ctx, q, filter, e)
	if err != nil {
		return filter, nil, err
	}
	for _, name := range c.remove {
		if _, has := deadLetter.Message.Headers[name]; !has {
			return filter, nil, cli.Usage("--remove-header: the message has no header %q", name)
		}
	}
	if e.editor {
		if c.body, err = t.openEditor(deadLetter); err != nil {
			return filter, nil, err
		}
		c.newBody = true
		if bytes.Equal(c.body, deadLetter.Message.Body) && len(c.set)+len(c.remove) == 0 {
			return filter, nil, cli.Usage("the body was not changed, so nothing was done; to replay it unchanged, " +
				"omit --edit")
		}
	}
	filter.Where = only(deadLetter)

	return filter, c.apply, nil
}

// maxHeaderName is how many bytes AMQP has for the name of a header.
const maxHeaderName = 255

// check gives what is known of a change before a broker is asked, or says what is wrong with the
// flags.
func (e *edits) check() (*change, error) {
	c := &change{newBody: e.body != "", set: map[string]string{}, removed: map[string]bool{}}
	for _, header := range e.set {
		name, value, ok := strings.Cut(header, "=")
		if !ok || name == "" {
			return c, cli.Usage("--set-header: must be name=value, got %q", header)
		}
		if _, twice := c.set[name]; twice || slices.Contains(e.remove, name) {
			return c, cli.Usage("--set-header: %q is there twice", name)
		}
		c.set[name] = value
	}
	c.remove = e.remove
	for _, name := range append(sortedKeys(c.set), e.remove...) {
		switch {
		case name == "":
			return c, cli.Usage("--remove-header: must be the name of a header, got an empty text")
		case len(name) > maxHeaderName:
			return c, cli.Usage("%q... is too long for the name of a header: it has %d bytes, and AMQP allows %d",
				name[:20], len(name), maxHeaderName)
		case isForeign(name):
			return c, cli.Usage("%q belongs to watermill-retry or to the broker: only other headers can be changed",
				name)
		}
	}
	if e.all && !c.any() {
		return c, cli.Usage("--edit-all: wanted a change: --body, --set-header or --remove-header")
	}

	return c, nil
}

// checkEditor refuses to open an editor where the work in it would be lost.
func (t *tool) checkEditor(e edits, f operationFlags) error {
	if e.editor && !f.yes && (f.dryRun || t.JSON || !t.InIsTerminal) {
		return cli.Usage("--edit: a dry run would discard the edit: add --yes, or read the message with dlq show")
	}
	return nil
}

func (t *tool) read(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(t.In)
	}
	return os.ReadFile(path)
}

// single gives the dead letter that matches, if it is the only one.
func (t *tool) single(ctx context.Context, q queue, filter dlq.Filter, e edits) (dlq.DeadLetter, error) {
	depth, _, err := q.Ready(ctx)
	if err != nil {
		return dlq.DeadLetter{}, err
	}
	bar := t.Progress("find the message in "+q.Name(), depth)
	defer bar.Close()
	var found []dlq.DeadLetter
	for deadLetter, err := range q.Browse(ctx, filter) {
		if err != nil {
			return dlq.DeadLetter{}, err
		}
		bar.Set(deadLetter.Position)
		if found = append(found, deadLetter); len(found) > 1 {
			return dlq.DeadLetter{}, t.several(q, found[0], e)
		}
	}
	switch {
	case len(found) == 0:
		return dlq.DeadLetter{}, cli.Usage("an edit changes exactly one message, and none of %s in %q matches",
			units.Thousands(depth), q.Name())
	case found[0].Unreadable != "":
		return dlq.DeadLetter{}, fmt.Errorf("the message has unreadable headers (%s), so it can only be shown and "+
			"counted", found[0].Unreadable)
	}

	return found[0], nil
}

// several is the error of an edit that several messages match. It names a command that edits the
// first of them.
func (t *tool) several(q queue, first dlq.DeadLetter, e edits) error {
	name := first.UUID
	if name == "" || position.MatchString(name) {
		name = strconv.Itoa(first.Position)
		e.others = slices.DeleteFunc(e.others, func(flag string) bool { return flag == "--yes" })
	}
	all := "--edit-all changes all of them"
	if e.editor {
		all = "to change all of them, use --body, --set-header or --remove-header with --edit-all"
	}
	flags := append(t.Again(), e.others...)
	if q.Name() != q.MainQueue()+suffix {
		flags = append(flags, "--dead-letter-queue", q.Name())
	}

	return cli.Usage("an edit changes exactly one message, and several match. For the oldest of them: "+
		"amqpretry dlq replay %s; %s", typed(flags, q.MainQueue(), name), all)
}

// openEditor gives the body as somebody has changed it.
func (t *tool) openEditor(l dlq.DeadLetter) (edited []byte, err error) {
	before := l.Message.Body
	if !isText(before) {
		return nil, cli.Usage("--edit: the body is no text; --body takes one from a file")
	}
	pattern := "amqpretry-*.txt"
	if json.Valid(before) {
		pattern = "amqpretry-*.json"
	}
	file, err := os.CreateTemp("", pattern)
	if err != nil {
		return nil, fmt.Errorf("--edit: %w", err)
	}
	keep := false
	defer func() {
		if !keep {
			_ = os.Remove(file.Name())
		}
	}()
	_, err = file.Write(before)
	if err := cmp.Or(err, file.Close()); err != nil {
		return nil, fmt.Errorf("--edit: %w", err)
	}

	editor := cmp.Or(t.Getenv("VISUAL"), t.Getenv("EDITOR"), "vi")
	program := exec.Command("sh", "-c", editor+` "$@"`, editor, file.Name())
	program.Stdin, program.Stdout, program.Stderr = t.In, t.Stdout(), t.Err
	if err := program.Run(); err != nil {
		return nil, fmt.Errorf("--edit: the editor %q: %w; nothing was done", editor, err)
	}
	if edited, err = os.ReadFile(file.Name()); err != nil {
		return nil, fmt.Errorf("--edit: %w", err)
	}
	if !bytes.HasSuffix(before, []byte("\n")) { // editors end the last line
		edited = bytes.TrimSuffix(edited, []byte("\n"))
	}
	if json.Valid(before) {
		var any json.RawMessage
		if err := json.Unmarshal(edited, &any); err != nil {
			keep = true
			return nil, fmt.Errorf("--edit: the body was JSON, and the edited text is not: %w; nothing was done. The "+
				"text is in %s: fix it, and pass it with --body", err, file.Name())
		}
	}

	return edited, nil
}
