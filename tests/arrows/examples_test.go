package arrows

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A user copies an example into his own module: what it imports must be there too, its first
// comment tells him what to look at, and the list of the examples has it.
func TestExamplesCanBeCopied(t *testing.T) {
	t.Parallel()

	list, err := os.ReadFile(root + "/examples/README.md")
	require.NoError(t, err)
	examples := 0
	walk(t, ".go", func(file string) {
		path, err := filepath.Rel(root, file)
		require.NoError(t, err)
		if !strings.HasPrefix(path, "examples/") {
			return
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.NotContains(t, string(text), `watermill-retry/internal/`, path)
		if filepath.Base(path) != "main.go" {
			return
		}
		examples++
		name := filepath.Base(filepath.Dir(path))
		assert.True(t, strings.HasPrefix(string(text), "// "+strings.ToUpper(name[:1])+name[1:]+" "),
			"%s begins with its name", path)
		assert.Contains(t, string(text), "func run(ctx context.Context", path)
		assert.Contains(t, string(list), "]("+strings.TrimPrefix(path, "examples/")+")", "the list of the examples")
	})
	assert.Greater(t, examples, 9)
}

// Modules of their own use the root module, and it uses none of them: neither do its examples. What
// is about such a module is an Example function there.
func TestExamplesOfTheRootModule(t *testing.T) {
	t.Parallel()

	checked := 0
	check := func(file string) {
		path, err := filepath.Rel(root, file)
		require.NoError(t, err)
		folder, _, _ := strings.Cut(path, "/")
		isExample := folder == "examples" || strings.HasSuffix(path, "example_test.go") &&
			slices.Contains([]string{"amqpretry", "config", "retry"}, folder)
		if !isExample {
			return
		}
		checked++
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, module := range []string{"middleware/metrics", "middleware/protect", "middleware/tracing", "cmd"} {
			assert.NotContains(t, string(text), `watermill-retry/`+module, path)
		}
	}
	walk(t, ".go", check)
	walk(t, "_test.go", check)
	assert.Greater(t, checked, 20)
}
