package arrows

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A user copies an example into his own module: what it imports must be there too, its first
// comment tells him what to look at, and the list of the examples has it.
func TestExamplesCanBeCopied(t *testing.T) {
	t.Parallel()

	list := read(t, root+"/examples/README.md")
	examples := 0
	walk(t, ".go", func(file, text string) {
		path, err := filepath.Rel(root, file)
		require.NoError(t, err)
		if !strings.HasPrefix(path, "examples/") {
			return
		}
		assert.NotContains(t, text, `watermill-retry/internal/`, path)
		if filepath.Base(path) != "main.go" {
			return
		}
		examples++
		name := filepath.Base(filepath.Dir(path))
		assert.True(t, strings.HasPrefix(text, "// "+strings.ToUpper(name[:1])+name[1:]+" "),
			"%s begins with its name", path)
		assert.Contains(t, text, "func run(ctx context.Context", path)
		assert.Contains(t, list, "]("+strings.TrimPrefix(path, "examples/")+")", "the list of the examples")
	})
	assert.Greater(t, examples, 9)
}
