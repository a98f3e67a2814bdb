package arrows

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/testkit/alertrules"
)

var (
	mdLink  = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"`)
	mdLabel = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// pageText is a page without its blocks of code.
func pageText(t *testing.T, path string) string {
	t.Helper()
	var kept []string
	code := false
	for _, line := range strings.Split(read(t, path), "\n") {
		isFence := strings.HasPrefix(strings.TrimSpace(line), "```")
		code = code != isFence
		if code || isFence {
			line = ""
		}
		kept = append(kept, line)
	}

	return strings.Join(kept, "\n")
}

// anchors are the fragments that GitHub gives to a page's headings.
func anchors(t *testing.T, path string) map[string]bool {
	t.Helper()
	found, seen := map[string]bool{}, map[string]int{}
	for _, line := range strings.Split(pageText(t, path), "\n") {
		title, isHeading := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !strings.HasPrefix(line, "#") || !isHeading {
			continue
		}
		title = mdLabel.ReplaceAllString(title, "$1")
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ' || r == '-':
				return '-'
			case r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			default:
				return -1
			}
		}, strings.TrimSpace(title))
		if n := seen[slug]; n > 0 {
			found[slug+"-"+strconv.Itoa(n)] = true
		}
		seen[slug]++
		found[slug] = true
	}

	return found
}

// links are the relative links of a page: files by their path from here, with the fragment behind a #.
func links(t *testing.T, path string) (found []string) {
	t.Helper()
	for _, m := range mdLink.FindAllStringSubmatch(pageText(t, path), -1) {
		target := m[1] + m[2]
		if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		file, fragment, hasFragment := strings.Cut(target, "#")
		if file == "" {
			file = path
		} else {
			file = filepath.Join(filepath.Dir(path), file)
		}
		if hasFragment {
			file += "#" + fragment
		}
		found = append(found, file)
	}

	return found
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()

	pages := 0
	walk(t, ".md", func(path, _ string) {
		pages++
		for _, link := range links(t, path) {
			file, fragment, hasFragment := strings.Cut(link, "#")
			if _, err := os.Stat(file); !assert.NoError(t, err, "%s links to a file that is not there", path) {
				continue
			}
			if hasFragment && strings.HasSuffix(file, ".md") {
				assert.True(t, anchors(t, file)[fragment], "%s links to %s, which has no heading #%s", path, file,
					fragment)
			}
		}
	})
	assert.Greater(t, pages, 20)
}

// address is one of a page on GitHub, as alerts, errors and comments name it.
var address = regexp.MustCompile(`github\.com/amqpretry/watermill-retry/blob/main/([\w./-]+\.md)(#[\w-]+)?`)

// The addresses of pages in code, alerts and pages lead to a file, and to a heading of it.
func TestAddressesLeadSomewhere(t *testing.T) {
	t.Parallel()

	walk(t, ".go .md .yaml .json", func(path, text string) {
		for _, m := range address.FindAllStringSubmatch(text, -1) {
			file := filepath.Join(root, m[1])
			if assert.FileExists(t, file, path) && m[2] != "" {
				assert.True(t, anchors(t, file)[m[2][1:]], "%s: no heading %s", path, m[0])
			}
		}
	})
}

// Each alert leads to its own section of the runbooks, each section belongs to an alert, and says all
// that somebody on call needs.
func TestRunbooks(t *testing.T) {
	t.Parallel()

	var alerts, sections []string
	for _, rule := range alertrules.Read(t, filepath.Join(root, "middleware/metrics/alerts.yaml")) {
		alerts = append(alerts, rule.Alert)
		assert.Equal(t, "https://github.com/amqpretry/watermill-retry/blob/main/docs/how-to/runbooks.md#"+
			strings.ToLower(rule.Alert), rule.Annotations["runbook_url"])
	}
	for _, section := range strings.Split(read(t, filepath.Join(root, "docs/how-to/runbooks.md")), "\n## ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		sections = append(sections, name)
		assert.Regexp(t, `(?s)^\n\*\*Means\*\*: .*\n\*\*Check first\*\*:.*\n`+"```sh\n"+`amqpretry .*\n\*\*Do\*\*: ?.*`+
			`\n\*\*Ends\*\*: `, body, name)
	}
	assert.Equal(t, alerts, sections)
}

// Each page of the docs is one click from their map, and the map is one click from README.
func TestMapHasEveryPage(t *testing.T) {
	t.Parallel()

	docsMap := filepath.Join(root, "docs", "README.md")
	linked := map[string]bool{docsMap: true}
	for _, link := range links(t, docsMap) {
		file, _, _ := strings.Cut(link, "#")
		linked[file] = true
		// A folder's own map.
		inDocs := strings.HasPrefix(file, filepath.Join(root, "docs"))
		if filepath.Base(file) == "README.md" && inDocs && file != docsMap {
			for _, further := range links(t, file) {
				file, _, _ := strings.Cut(further, "#")
				linked[file] = true
			}
		}
	}
	walk(t, ".md", func(path, _ string) {
		if strings.HasPrefix(path, filepath.Join(root, "docs")) {
			assert.True(t, linked[path], "docs/README.md does not link to %s", path)
		}
	})
	assert.Contains(t, links(t, filepath.Join(root, "README.md")), docsMap)
}

// A page with more lines of text than this is two. Blocks of code, tables and empty lines do not
// count: they are looked up, not read.
const longestPage = 150

func TestPagesAreShort(t *testing.T) {
	t.Parallel()

	walk(t, ".md", func(path, _ string) {
		if !strings.HasPrefix(path, filepath.Join(root, "docs")) {
			return
		}
		lines := 0
		for _, line := range strings.Split(pageText(t, path), "\n") {
			if line != "" && !strings.HasPrefix(line, "|") {
				lines++
			}
		}
		assert.LessOrEqual(t, lines, longestPage, "%s: lines; split it by task", path)
	})
}
