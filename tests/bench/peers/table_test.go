package peers

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// table is one of the report, in Markdown.
type table struct {
	title string
	notes []string // a paragraph above it each
	head  []string
	rows  [][]string
}

func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = spell(cell)
	}
	t.rows = append(t.rows, row)
}

// spell keeps three digits of a number.
func spell(cell any) string {
	v, isFloat := cell.(float64)
	switch {
	case !isFloat:
		return fmt.Sprint(cell)
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func (t *table) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "### %s\n\n", t.title)
	for _, note := range t.notes {
		fmt.Fprintf(&s, "%s\n\n", note)
	}
	fmt.Fprintf(&s, "| %s |\n|%s\n", strings.Join(t.head, " | "), strings.Repeat("---|", len(t.head)))
	for _, row := range t.rows {
		fmt.Fprintf(&s, "| %s |\n", strings.Join(row, " | "))
	}

	return s.String()
}

// write logs a table, and adds it to the file that REPORT names.
func (t *table) write(b *testing.B, uri string) {
	b.Helper()
	b.Logf("\n%s", t)

	path := os.Getenv("REPORT")
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(b, err)
	defer func() { require.NoError(b, file.Close()) }()
	_, err = fmt.Fprintf(file, "%s\n%s\n\n", t, machine(b, uri))
	require.NoError(b, err)
}

// machine says on what was measured.
func machine(b *testing.B, uri string) string {
	b.Helper()
	connection := dial(b, uri)
	defer connection.Close()

	return fmt.Sprintf("RabbitMQ %v, %s, %s/%s, %d CPUs shared with the broker, SCALE=%v.",
		connection.Properties["version"], runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), scale(b))
}

// metric makes a name one that a benchmark's unit may have.
func metric(name string) string { return strings.NewReplacer(" ", "-", ",", "").Replace(name) }

// scale is what SCALE says.
func scale(b *testing.B) float64 {
	b.Helper()
	given := os.Getenv("SCALE")
	if given == "" {
		return 1
	}
	value, err := strconv.ParseFloat(given, 64)
	require.NoError(b, err, "SCALE")

	return value
}

// scaled is n times SCALE, and at least so many.
func scaled(b *testing.B, n, least int) int {
	b.Helper()
	return max(int(float64(n)*scale(b)), least)
}
