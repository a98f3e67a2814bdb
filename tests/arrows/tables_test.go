package arrows

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A row with more or fewer cells than its table's head is shown wrong, or not at all.
func TestTablesAreWhole(t *testing.T) {
	t.Parallel()

	walk(t, ".md", func(path, text string) {
		head, code := 0, false
		for i, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				code = !code
			}
			switch {
			case code || !strings.HasPrefix(line, "|"):
				head = 0
			case head == 0:
				head = columns(line)
			default:
				assert.Equal(t, head, columns(line), "%s:%d: cells of a row: %s", path, i+1, line)
			}
		}
	})
}

// columns counts the cells of a row. A | that is escaped is text; one in code that is not escaped
// separates cells all the same.
func columns(row string) int {
	row = strings.ReplaceAll(strings.TrimSpace(row), `\|`, "")
	return strings.Count(strings.TrimSuffix(strings.TrimPrefix(row, "|"), "|"), "|") + 1
}
