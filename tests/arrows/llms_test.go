package arrows

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rawPages is where a page is served as plain Markdown.
const rawPages = "https://raw.githubusercontent.com/amqpretry/watermill-retry/main/"

// mapRow is a row of the docs' map: the first link, and what the page has.
var mapRow = regexp.MustCompile(`^\| \[([^\]]+)\]\(([^)#]+)\) \| (.+) \|$`)

// llms.txt lists all pages for programs that read the docs (https://llmstxt.org): the rows of the
// map, and the pages of a folder with a map of its own behind that map. UPDATE=yes writes it.
func TestLLMsFile(t *testing.T) {
	t.Parallel()
	const file = root + "/llms.txt"
	docs := filepath.Join(root, "docs")
	listed := map[string]bool{filepath.Join(docs, "README.md"): true}

	var text strings.Builder
	fmt.Fprintf(&text, "# watermill-retry\n\n> %s\n", summaryOf(t, filepath.Join(root, "README.md"), "Durable"))
	write := func(title, path, what string) {
		address := path
		if !strings.Contains(path, "://") {
			listed[path] = true
			address = rawPages + strings.TrimPrefix(path, root+"/")
		}
		fmt.Fprintf(&text, "- [%s](%s): %s\n", title, address, what)
	}
	for _, line := range strings.Split(pageText(t, filepath.Join(docs, "README.md")), "\n") {
		if heading, isHeading := strings.CutPrefix(line, "## "); isHeading {
			heading = strings.Replace(heading, "The project", "Optional", 1) // what a reader may skip
			fmt.Fprintf(&text, "\n## %s\n\n", heading)
		}
		row := mapRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		path := row[2]
		if !strings.Contains(path, "://") {
			path = filepath.Join(docs, path)
		}
		write(row[1], path, mdLabel.ReplaceAllString(row[3], "$1"))
		if filepath.Base(path) != "README.md" || !within(path, "docs") {
			continue
		}
		for _, link := range links(t, path) {
			further, _, _ := strings.Cut(link, "#")
			if filepath.Dir(further) == filepath.Dir(path) && !listed[further] {
				write(titleOf(t, further), further, summaryOf(t, further, ""))
			}
		}
	}
	walk(t, ".md", func(path, _ string) {
		if strings.HasPrefix(path, docs+string(filepath.Separator)) {
			assert.True(t, listed[path], "%s: no row of docs/README.md begins with a link to it", path)
		}
	})

	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, []byte(text.String()), 0o600))
		return
	}
	found, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, text.String(), string(found),
		"%s: UPDATE=yes go test ./tests/arrows -run TestLLMsFile writes it", file)
}

func titleOf(t *testing.T, path string) string {
	t.Helper()
	title, _, _ := strings.Cut(strings.TrimPrefix(pageText(t, path), "# "), "\n")

	return title
}

// summaryOf is the first paragraph of a page, or the first that begins with a word, without its
// links.
func summaryOf(t *testing.T, path, word string) string {
	t.Helper()
	_, paragraph, found := strings.Cut(pageText(t, path), "\n\n"+word)
	require.True(t, found, "%s: no paragraph begins with %q", path, word)
	paragraph, _, _ = strings.Cut(word+paragraph, "\n\n")

	return mdLabel.ReplaceAllString(strings.Join(strings.Fields(paragraph), " "), "$1")
}
