package arrows

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// No file of the module, its tests included, has a phrase that words.txt refuses.
func TestRefusedWords(t *testing.T) {
	t.Parallel()
	words := wordsOf(t, read(t, "words.txt"))
	require.Greater(t, len(words), 30, "the check must not run empty")
	seen := 0
	walk(t, ".go _test.go .md .html .yaml .json", func(path, text string) {
		if strings.HasSuffix(path, ".json") && !within(path, "metrics") {
			return // of others, and data
		}
		if strings.HasSuffix(path, "arrows/words_test.go") {
			return // this file, whose mutants have them
		}
		seen++
		for _, problem := range refusedWords(words, text) {
			t.Errorf("%s:%s", filepath.ToSlash(path), problem)
		}
	})
	require.Greater(t, seen, 300, "the check must not run empty")
}

// The check itself: it finds a phrase in each place, and no part of another word.
func TestRefusedWordsOfMutants(t *testing.T) {
	t.Parallel()
	words := wordsOf(t, "# a comment\nlies? ready | ready messages\nmend(s|ed)? | fix\n")
	const wrong = `is refused: write "ready messages"`
	for name, test := range map[string]struct{ text, problem string }{
		"none":                        {"recommended amendments; ready lies", ""},
		"a part of a longer word":     {"// lies readying", ""},
		"a line":                      {"one\nMessages lie ready here\n", `2: "lie ready" ` + wrong},
		"in upper case":               {"Lies Ready", `1: "lies ready" ` + wrong},
		"a comment of two lines":      {"x\n\t// it lies\n\t// ready", `2: "lies ready" ` + wrong},
		"a string of two lines":       {"x\nf(\"it lies \" +\n\t\t\"ready\")", `2: "lies ready" ` + wrong},
		"a paragraph of two lines":    {"\n\nit lies\nready", `3: "lies ready" ` + wrong},
		"an item of two lines":        {"* it lies\n  ready", `1: "lies ready" ` + wrong},
		"the second phrase of a list": {"it mends", `1: "mends" is refused: write "fix"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, test.problem, strings.Join(refusedWords(words, test.text), "\n"))
		})
	}
}

// word is a refused phrase. It begins with a letter, not a group: that makes the search fast.
type word struct {
	phrase  *regexp.Regexp
	instead string
}

func wordsOf(t *testing.T, list string) []word {
	t.Helper()
	var words []word
	for _, line := range strings.Split(list, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		phrase, instead, found := strings.Cut(line, " | ")
		require.True(t, found, line)
		words = append(words, word{regexp.MustCompile(strings.ToLower(phrase) + `\b`), instead})
	}

	return words
}

// lineEnd is the end of a line with what the next one begins with: white space, and the marks of a
// comment, or of a string that goes on.
var lineEnd = regexp.MustCompile(`[ \t]*(?:["\x60][ \t]*\+[ \t]*)?\n[ \t]*(?://[ \t]*|#[ \t]+|["\x60])?`)

// refusedWords returns the refused phrases of a text, in lower case, with their lines.
func refusedWords(words []word, text string) []string {
	var flat strings.Builder
	var lines []int // where each line begins in the flat text
	rest := strings.ToLower(text)
	for {
		lines = append(lines, flat.Len())
		at := lineEnd.FindStringIndex(rest)
		if at == nil {
			break
		}
		flat.WriteString(strings.TrimRight(rest[:at[0]], " "))
		flat.WriteByte(' ')
		rest = rest[at[1]:]
	}
	flat.WriteString(rest)

	var problems []string
	for _, word := range words {
		for _, at := range word.phrase.FindAllStringIndex(flat.String(), -1) {
			if at[0] > 0 && isWord(flat.String()[at[0]-1]) {
				continue
			}
			line := 0
			for line < len(lines) && lines[line] <= at[0] {
				line++
			}
			problems = append(problems, fmt.Sprintf("%d: %q is refused: write %q", line, flat.String()[at[0]:at[1]],
				word.instead))
		}
	}

	return problems
}

func isWord(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
