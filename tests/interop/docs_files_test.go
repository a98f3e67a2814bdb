package interop

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
)

// fences are the code blocks of a page in Markdown, with the words behind the fence.
var fences = regexp.MustCompile("(?ms)^```([a-z]+)([^\n]*)\n(.*?)^```$")

// documented lists the policy files that the docs and the examples show: all blocks of YAML and
// JSON in any page that name no other kind of file behind the fence (```yaml kubernetes), and the
// files retry.* of the examples.
func documented(t *testing.T) (texts []string) {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, path := range append(pages, "../../README.md") {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, block := range fences.FindAllStringSubmatch(string(page), -1) {
			if (block[1] == "yaml" || block[1] == "json") && block[2] == "" {
				texts = append(texts, block[3])
			}
		}
	}
	require.GreaterOrEqual(t, len(texts), 7, "there are more, so they are not found")
	files := 0
	require.NoError(t, filepath.WalkDir("../../examples", func(path string, _ fs.DirEntry, err error) error {
		ext := filepath.Ext(path)
		if err != nil || filepath.Base(path) != "retry"+ext || (ext != ".yaml" && ext != ".yml" && ext != ".json") {
			return err
		}
		text, err := os.ReadFile(path)
		texts, files = append(texts, string(text)), files+1
		return err
	}))
	require.Positive(t, files)
	return texts
}

func TestDocumentedFiles(t *testing.T) {
	for _, text := range documented(t) {
		policies, err := policyfile.Parse([]byte(text))
		if assert.NoError(t, err, text) {
			assert.NotEqual(t, config.Policies{}, policies, "it says nothing:\n%s", text)
		}
	}
}

// The page's full sample has every field, so that none is left out when one is added.
func TestDocumentedFieldsAreComplete(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/policy-files.md")
	require.NoError(t, err)
	document := string(policyfile.JSONSchema())
	names := regexp.MustCompile(`(?m)^ {8,12}"([a-z_]+)": \{$`).FindAllStringSubmatch(document, -1)
	require.GreaterOrEqual(t, len(names), 15)
	for _, name := range names {
		if name[1] != "properties" && name[1] != "items" {
			assert.Contains(t, string(page), name[1]+":", "it is in no file of the page")
		}
	}
}
