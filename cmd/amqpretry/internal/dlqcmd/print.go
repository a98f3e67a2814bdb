package dlqcmd

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// printSafe prints a line.
func (t *tool) printSafe(format string, args ...any) error {
	_, err := fmt.Fprintln(t.Out, cli.Safe(fmt.Sprintf(format, args...)))
	return err
}

// pairs prints names and values, one below the other, and cuts nothing. A value of several lines
// stays one.
func (t *tool) pairs(lines [][2]string) error {
	width := 0
	for _, line := range lines {
		width = max(width, utf8.RuneCountInString(line[0]))
	}
	for _, line := range lines {
		indent := strings.Repeat(" ", width+2)
		value := strings.ReplaceAll(safeLines(line[1]), "\n", "\n"+indent)
		if _, err := fmt.Fprintf(t.Out, "%-*s  %s\n", width, cli.Safe(line[0]), value); err != nil {
			return err
		}
	}

	return nil
}

// safeLines makes each line of a text safe.
func safeLines(text string) string {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i, line := range lines {
		lines[i] = cli.Safe(line)
	}
	return strings.Join(lines, "\n")
}

// grid prints columns, and cuts nothing, as a whole message must be seen whole.
func (t *tool) grid(rows [][]string) error {
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		safe := make([]string, len(row))
		for i, cell := range row {
			safe[i] = cli.Safe(cell)
		}
		_, _ = fmt.Fprintln(w, "  "+strings.Join(safe, "\t")) // to memory
	}
	_ = w.Flush()
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Fprintln(t.Out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}

	return nil
}

func upper(cells []string) []string {
	all := make([]string, len(cells))
	for i, cell := range cells {
		all[i] = strings.ToUpper(cell)
	}
	return all
}
