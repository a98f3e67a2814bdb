package report_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/report"
)

func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.md")
	t.Setenv("REPORT", path)
	table := report.Table{Title: "Rates", Notes: []string{"Of two ways."}, Head: []string{"way", "rate"}}
	table.Add("raw", 1234.56)
	table.Add("library", -12.345)
	table.Add(2, 0.5)
	report.Write(t, table.String())
	report.Write(t, "end\n")

	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, `### Rates

Of two ways.

| way | rate |
|---|---|
| raw | 1235 |
| library | -12.3 |
| 2 | 0.50 |

end

`, string(text))
}
