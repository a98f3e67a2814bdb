package arrows

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mostColumns is how wide a line of a comment may be, with tabs of four columns.
const mostColumns = 100

// Comments have lines of 100 columns at most: long lines are where long sentences hide.
func TestCommentsAreNarrow(t *testing.T) {
	t.Parallel()
	seen := 0
	walk(t, ".go _test.go", func(path, code string) {
		seen++
		for _, line := range wideComments(code) {
			t.Errorf("%s:%s", filepath.ToSlash(path), line)
		}
	})
	require.Greater(t, seen, 700, "the check must not run empty")
}

// The check itself.
func TestCommentsAreNarrowOfMutants(t *testing.T) {
	t.Parallel()
	narrow := "// " + strings.Repeat("word ", 19) + "é"
	for name, test := range map[string]struct{ code, wide string }{
		"as wide as may be":   {narrow + "x", ""},
		"too wide":            {"package p\n" + narrow + "xy", "2: 101 columns"},
		"a tab is four":       {"\t" + narrow, "1: 103 columns"},
		"shown as it is":      {"//\t" + narrow, ""},
		"a drawing":           {"// ├" + strings.Repeat("─", 110), ""},
		"a tool's own":        {"//nolint:x // " + narrow, ""},
		"one address":         {"// https://example.com/" + strings.Repeat("x", 100), ""},
		"code":                {`x := "` + narrow + `xxxxxx"`, ""},
		"a string of lines":   {"x := `\n" + narrow + "xxxxxx\n`", ""},
		"an example's output": {"// Output: x\n" + narrow + "xy\n}\n" + narrow + "xy", "4: 101 columns"},
		"behind such a text":  {"x := `\n`\n" + narrow + "xy", "3: 101 columns"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.wide, strings.Join(wideComments(test.code), "\n"))
		})
	}
}

// drawn is a comment's line that is not prose: code, a table, a drawing, an address alone, or for a
// tool.
var drawn = regexp.MustCompile(`^//(\t|\w|\s+\S+$|.*(──|--|[│┌└├▲▼►]))`)

// wideComments are the lines of a file that are comments and too wide, with their widths.
func wideComments(code string) (wide []string) {
	isText := false   // within a string of several lines
	isOutput := false // below Output: of an example
	for i, line := range strings.Split(code, "\n") {
		comment := strings.TrimLeft(line, "\t")
		isComment := strings.HasPrefix(comment, "//") && !isText
		if !isComment && strings.Count(line, "`")%2 == 1 {
			isText = !isText
		}
		isOutput = isComment && (isOutput || strings.HasPrefix(comment, "// Output:") ||
			strings.HasPrefix(comment, "// Unordered output:"))
		columns := utf8.RuneCountInString(line) + 3*(len(line)-len(comment))
		if isComment && !isOutput && columns > mostColumns && !drawn.MatchString(comment) {
			wide = append(wide, fmt.Sprintf("%d: %d columns", i+1, columns))
		}
	}

	return wide
}
