package arrows

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var quotedLog = regexp.MustCompile(`\blog(?:s| says| lines?)?\s+"([^"]+)"`)

// People search the log for what a page or an alert quotes: the code has to write it.
func TestQuotedLogLinesAreWritten(t *testing.T) {
	t.Parallel()
	quoted, written := map[string]string{}, strings.Builder{}
	walk(t, ".md .yaml", func(path, text string) {
		for _, found := range quotedLog.FindAllStringSubmatch(text, -1) {
			quoted[strings.Join(strings.Fields(found[1]), " ")] = path
		}
	})
	walk(t, ".go", func(_, text string) { written.WriteString(text) })
	require.Greater(t, len(quoted), 4, "the check must not run empty")
	for line, path := range quoted {
		if !strings.Contains(written.String(), `"`+line) {
			t.Errorf("%s quotes %q, which no log line begins with", path, line)
		}
	}
}
