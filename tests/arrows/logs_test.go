package arrows

import (
	"os"
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
	for _, extension := range []string{".md", ".yaml"} {
		walk(t, extension, func(path string) {
			if strings.HasSuffix(path, "CHANGELOG.md") { // which also has those of before
				return
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, found := range quotedLog.FindAllStringSubmatch(string(text), -1) {
				quoted[strings.Join(strings.Fields(found[1]), " ")] = path
			}
		})
	}
	walk(t, ".go", func(path string) {
		if !strings.HasSuffix(path, "_test.go") {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			written.Write(text)
		}
	})
	require.Greater(t, len(quoted), 4, "the check must not run empty")
	for line, path := range quoted {
		if !strings.Contains(written.String(), `"`+line) {
			t.Errorf("%s quotes %q, which no log line begins with", path, line)
		}
	}
}
