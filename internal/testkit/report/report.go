// Package report writes what tests and benchmarks have measured: tables in Markdown, logged and
// added to a file.
package report

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/rabbit"
)

// Write logs a text, and adds it to the file that REPORT names.
func Write(t testing.TB, text string) {
	t.Helper()
	t.Log("\n" + text)
	path := os.Getenv("REPORT")
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	_, err = file.WriteString(text + "\n")
	require.NoError(t, errors.Join(err, file.Close()))
}

// Table is a table in Markdown.
type Table struct {
	Title string
	Notes []string // a paragraph above the table each
	Head  []string

	rows [][]string
}

// Add adds a row of cells, see [cellText].
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = cellText(cell)
	}
	t.rows = append(t.rows, row)
}

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// cellText returns a cell of a table as text. It keeps three digits of a float.
func cellText(cell any) string {
	v, isFloat := cell.(float64)
	switch {
	case !isFloat:
		return fmt.Sprint(cell)
	case v >= 100 || v <= -100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10 || v <= -10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

// String returns the table with its title and notes.
func (t *Table) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "### %s\n\n", t.Title)
	for _, note := range t.Notes {
		fmt.Fprintf(&s, "%s\n\n", note)
	}
	fmt.Fprintf(&s, "| %s |\n|%s\n", strings.Join(t.Head, " | "), strings.Repeat("---|", len(t.Head)))
	for _, row := range t.rows {
		fmt.Fprintf(&s, "| %s |\n", strings.Join(row, " | "))
	}

	return s.String()
}

// WriteOn writes the table with the machine and the broker on which a benchmark measured. It writes
// nothing of a benchmark that -bench filtered out or that failed.
func (t *Table) WriteOn(b *testing.B, uri string) {
	b.Helper()
	if t.Len() == 0 {
		return
	}
	Write(b, fmt.Sprintf("%s\nRabbitMQ %v, %s, %s/%s, %d CPUs shared with the broker, SCALE=%v.\n", t,
		rabbit.New(b, uri).Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), Scale(b)))
}

// Scale returns the environment's SCALE, by which benchmarks are made shorter; 1 without one.
func Scale(b *testing.B) float64 {
	b.Helper()
	given := os.Getenv("SCALE")
	if given == "" {
		return 1
	}
	value, err := strconv.ParseFloat(given, 64)
	require.NoError(b, err, "SCALE")

	return value
}

// Scaled returns n times [Scale], but no less than least.
func Scaled(b *testing.B, n, least int) int {
	b.Helper()
	return max(int(float64(n)*Scale(b)), least)
}

// Unit returns a name as one that the unit of a benchmark may have.
func Unit(name string) string { return strings.NewReplacer(" ", "-", ",", "").Replace(name) }
