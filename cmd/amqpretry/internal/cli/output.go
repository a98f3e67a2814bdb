package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// PrintJSON prints one value on Out, indented.
func (s *Session) PrintJSON(v any) error { return s.printJSON(v, "  ") }

// PrintJSONLine prints one value of several on Out, as one line.
func (s *Session) PrintJSONLine(v any) error { return s.printJSON(v, "") }

func (s *Session) printJSON(v any, indent string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(v); err != nil {
		return err
	}
	_, err := s.Out.Write(safeJSON(text.Bytes()))

	return err
}

// Table prints aligned columns, whatever is in the cells. On a terminal lines are cut to its width.
func (s *Session) Table(header []string, rows [][]string) error {
	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	// The writer never fails: it writes to memory.
	line := func(cells []string) {
		safe := make([]string, len(cells))
		for i, cell := range cells {
			safe[i] = Safe(cell)
		}
		_, _ = fmt.Fprintln(w, strings.Join(safe, "\t"))
	}
	line(upper(header))
	for _, row := range rows {
		line(row)
	}
	_ = w.Flush()

	head := true
	for row := range strings.Lines(text.String()) {
		row = cut(strings.TrimRight(row, " \n"), s.Width)
		if head {
			row, head = s.Paint(Heading, row), false
		}
		if _, err := fmt.Fprintln(s.Out, row); err != nil {
			return err
		}
	}

	return nil
}

// Printer prints on Out, until something cannot be printed.
type Printer struct {
	session *Session
	err     error
}

// Printer is a new one.
func (s *Session) Printer() *Printer { return &Printer{session: s} }

// Line prints a line. Its arguments must be safe.
func (p *Printer) Line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.session.Out, format+"\n", args...)
	}
}

// Table is [Session.Table].
func (p *Printer) Table(header []string, rows [][]string) {
	if p.err == nil {
		p.err = p.session.Table(header, rows)
	}
}

// Err is why something could not be printed.
func (p *Printer) Err() error { return p.err }

// Read is an error of printing, without that of a reader who has gone: the exit code is asked for
// as well.
func Read(err error) error {
	if errors.Is(err, ErrNobodyReads) {
		return nil
	}

	return err
}

// Times is "1 message", or "2 messages".
func Times[N int | int64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}

	return fmt.Sprintf("%d %ss", n, what)
}

// ShortDuration leaves out what is zero: 2m instead of 2m0s.
func ShortDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}

	return text
}

func upper(cells []string) []string {
	all := make([]string, len(cells))
	for i, cell := range cells {
		all[i] = strings.ToUpper(cell)
	}

	return all
}

func cut(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}

	return string([]rune(line)[:width-1]) + "…"
}

// Note prints a line on Err.
func (s *Session) Note(format string, args ...any) {
	// nobody is left to tell of an error
	_, _ = fmt.Fprintln(s.Err, note(format, args...))
}

// Warn is [Session.Note] in the style of a warning.
func (s *Session) Warn(format string, args ...any) {
	_, _ = fmt.Fprintln(s.Err, s.PaintErr(Warn, note(format, args...)))
}

// Fail is [Session.Note] for what has failed.
func (s *Session) Fail(name string, err error) {
	_, _ = fmt.Fprintln(s.Err, s.PaintErr(Bad, name+":"), note("%v", err))
}

func note(format string, args ...any) string {
	return SafeLines(hideAddresses(fmt.Sprintf(format, args...)))
}
