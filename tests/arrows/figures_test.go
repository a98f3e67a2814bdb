package arrows

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// table is one of docs/project/benchmarks.md: rows of cells by the head of their column.
type table []map[string]string

// tableOf reads the first table below a heading.
func tableOf(t *testing.T, heading string) table {
	t.Helper()
	_, behind, found := strings.Cut(read(t, root+"/docs/project/benchmarks.md"), "\n## "+heading+"\n")
	require.True(t, found, heading)

	var (
		head []string
		rows table
	)
	for _, line := range strings.Split(behind, "\n") {
		switch {
		case !strings.HasPrefix(line, "|") && head != nil:
			return rows
		case !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---"):
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if head == nil {
			head = cells
			continue
		}
		row := map[string]string{}
		for i, name := range head {
			row[name] = cells[i]
		}
		rows = append(rows, row)
	}

	return rows
}

// values are those of a column, in the rows that a condition takes.
func (rows table) values(t *testing.T, column string, takes func(row map[string]string) bool) []float64 {
	t.Helper()
	var values []float64
	for _, row := range rows {
		if takes(row) {
			value, err := strconv.ParseFloat(row[column], 64)
			require.NoError(t, err, "%s of %v", column, row)
			values = append(values, value)
		}
	}
	require.NotEmpty(t, values)

	return values
}

// Each figure that README and the page of policies take from the tables holds in every row of them.
func TestFiguresAreThoseOfTheTables(t *testing.T) {
	t.Parallel()
	readme := strings.Join(strings.Fields(read(t, root+"/README.md")), " ")
	between := func(values []float64) string {
		return fmt.Sprintf("%.2f to %.2f", slices.Min(values), slices.Max(values))
	}

	healthy := tableOf(t, "Healthy messages")
	one := healthy.values(t, "retrier/stock", func(row map[string]string) bool { return row["prefetch"] == "1" })
	more := healthy.values(t, "retrier/stock", func(row map[string]string) bool { return row["prefetch"] != "1" })
	assert.Contains(t, readme, between(one)+" of what stock watermill-amqp handles with a prefetch of 1, and "+
		between(more)+" with one of 10 or 100")

	failing := tableOf(t, "Healthy messages between failing ones")
	oneInTen := func(handler string) func(map[string]string) bool {
		return func(row map[string]string) bool { return row["handler"] == handler && row["failing"] == "1 in 10" }
	}
	assert.Contains(t, readme, "leaves the healthy ones "+between(failing.values(t, "retrier", oneInTen("1ms")))+
		" of their throughput")
	assert.Contains(t, readme, "it is "+between(failing.values(t, "retrier", oneInTen("0s"))))
	for _, value := range failing.values(t, "Retry", oneInTen("1ms")) {
		assert.Contains(t, readme, fmt.Sprintf("`Retry` leaves %.2f", value))
	}

	forwarded := tableOf(t, "Failures forwarded").values(t, "of the limit", func(row map[string]string) bool {
		return strings.HasPrefix(row["forwarded by"], "the retrier")
	})
	assert.Contains(t, readme, "forwarded at "+between(forwarded)+" of the rate")

	late := tableOf(t, "How late retries are")
	few := late.values(t, "added p50", func(row map[string]string) bool { return row["retries/s"] != "1000" })
	many := late.values(t, "added p50", func(row map[string]string) bool { return row["retries/s"] == "1000" })
	assert.Contains(t, readme, fmt.Sprintf("at most %.1f ms later than a bare TTL queue makes it; at 1,000 it is up "+
		"to %.1f ms", slices.Max(few), slices.Max(many)))

	page := read(t, root+"/docs/reference/policies.md")
	topics := map[string]map[string]string{}
	for _, row := range tableOf(t, "Many topics") {
		if row["topics"] == "1000" {
			topics[row["retry queues"]] = row
		}
	}
	for title, column := range map[string]string{
		"first start, s": "first, s", "memory of the broker, MiB": "broker, MiB",
	} {
		assert.Contains(t, page, fmt.Sprintf("| %s | %s | %s |", title, topics["own"][column],
			topics["shared"][column]))
	}
}
