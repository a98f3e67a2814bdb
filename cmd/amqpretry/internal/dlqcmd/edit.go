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
	"time"

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
	filter      string   // a command that changes bodies
	timeout     time.Duration
}

func (e *edits) add(cmd *cobra.Command) {
	cmd.Flags().Var(cli.Text(&e.body), "body", "`file` with the new body; - is standard input")
	cmd.Flags().BoolVar(&e.editor, "edit", false, "open the body in $VISUAL or $EDITOR")
	cmd.Flags().StringArrayVar(&e.set, "set-header", nil, "header to set, `name=value`, as text; repeatable")
	cmd.Flags().StringArrayVar(&e.remove, "remove-header", nil, "`name` of a header to remove; repeatable")
	cmd.Flags().BoolVar(&e.all, "edit-all", false, "allow the edit of several messages")
	cmd.Flags().Var(cli.Text(&e.filter), "filter-body", "`command` that reads each body from its standard input and "+
		"prints the new one")
	cmd.Flags().DurationVar(&e.timeout, "filter-timeout", filterTimeout, "with --filter-body: maximum time for one "+
		"body")
	cmd.MarkFlagsMutuallyExclusive("body", "edit", "filter-body")
	cmd.MarkFlagsMutuallyExclusive("edit", "edit-all")
}

// edit prepares what a replay is to change, and narrows its filter to the one message that it is
// for.
func (t *tool) edit(ctx context.Context, q queue, o *operation, e edits) (err error) {
	c := o.plan.Change
	if e.body == "" && e.filter == "" && !c.Any() && !e.editor {
		o.plan.Change = nil
		return nil
	}
	o.watchRemoved()
	if e.filter != "" {
		o.filterBodies(ctx, e.filter, e.timeout)
		return nil
	}
	if e.body != "" {
		body, err := t.read(e.body)
		if err != nil {
			return fmt.Errorf("--body: %w", err)
		}
		c.Body = ptr(string(body))
	}
	if e.all {
		return nil
	}

	deadLetter, err := t.single(ctx, q, o.plan.Filter, e)
	if err != nil {
		return err
	}
	for _, name := range c.Remove {
		if _, has := deadLetter.Message.Headers[name]; !has {
			return cli.Usage("--remove-header: the message has no header %q", name)
		}
	}
	if e.editor {
		body, err := t.openEditor(deadLetter)
		if err != nil {
			return err
		}
		if bytes.Equal(body, deadLetter.Message.Body) && !c.Any() {
			return cli.Usage("the body was not changed, so nothing was done; to replay it unchanged, omit --edit")
		}
		c.Body = ptr(string(body))
	}
	o.plan.Filter.Where = only(deadLetter)

	return nil
}

func ptr[T any](value T) *T { return &value }

// watchRemoved remarks on headers to remove that no message had.
func (e *operation) watchRemoved() {
	names, removed := e.plan.Change.Remove, map[string]bool{}
	e.plan.Edit = func(m *amqp091.Publishing) error {
		for _, name := range names {
			_, has := m.Headers[name]
			removed[name] = removed[name] || has
		}
		return nil
	}
	e.remarks = func(r dlq.Report) (all []string) {
		for _, name := range names {
			if r.Done > 0 && !removed[name] {
				all = append(all, fmt.Sprintf("--remove-header %s: none of the %s had it", name,
					units.Many(r.Done, "message")))
			}
		}
		return all
	}
}

// check gives what is known of a change before a broker is asked, or says what is wrong with the
// flags.
func (e *edits) check() (*dlq.Change, error) {
	c := &dlq.Change{Set: map[string]dlq.HeaderValue{}, Remove: e.remove}
	for _, header := range e.set {
		name, value, ok := strings.Cut(header, "=")
		if !ok || name == "" {
			return c, cli.Usage("--set-header: must be name=value, got %q", header)
		}
		if _, twice := c.Set[name]; twice {
			return c, cli.Usage("--set-header: %q is there twice", name)
		}
		c.Set[name] = dlq.HeaderValue{Value: value}
	}
	if e.all && e.body == "" && e.filter == "" && !c.Any() {
		return c, cli.Usage("--edit-all: wanted a change: --body, --filter-body, --set-header or --remove-header")
	}
	if e.timeout <= 0 {
		return c, cli.Usage("--filter-timeout: must be more than 0, got %s", e.timeout)
	}
	if e.filter == "" && e.timeout != filterTimeout {
		return c, cli.Usage("--filter-timeout: wanted --filter-body beside it")
	}

	return c, asUsage(c.Validate())
}

// checkEditor refuses to open an editor where the work in it would be lost.
func (t *tool) checkEditor(e edits, o *operation) error {
	if e.editor && !o.yes && (o.dryRun || t.JSON || !t.InIsTerminal) {
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
