// Package arrows checks what the module's files say: comments, error texts, pages. It needs no
// broker.
package arrows

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// errors.As with a value compiles where an error type has value receivers, and is false when the
// error is a pointer. So all of ours that anybody can name are pointers, and the documentation
// calls them so.
func TestExportedErrorsArePointers(t *testing.T) {
	t.Parallel()

	exported := map[string]bool{}
	for _, source := range sources(t) {
		for _, declaration := range source.file.Decls {
			f, is := declaration.(*ast.FuncDecl)
			if !is || f.Recv == nil || f.Name.Name != "Error" || len(f.Type.Params.List) != 0 {
				continue
			}
			receiver := f.Recv.List[0].Type
			pointer, isPointer := receiver.(*ast.StarExpr)
			if isPointer {
				receiver = pointer.X
			}
			if name, is := receiver.(*ast.Ident); is && name.IsExported() {
				exported[name.Name] = true
				assert.True(t, isPointer, "%s: %s has a value receiver", source.path, name.Name)
			}
		}
	}
	require.True(t, exported["HeldError"] && exported["ConflictError"] && exported["FieldError"], "%v", exported)

	code := regexp.MustCompile("`(?:[a-z]+\\.)?([A-Z]\\w*Error)`")
	walk(t, ".md", func(path, text string) {
		for _, match := range code.FindAllStringSubmatch(text, -1) {
			assert.False(t, exported[match[1]], "%s: %s is always a pointer: `*…%s`", path, match[0], match[1])
		}
	})
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)

	return string(text)
}

// walk reads the module's files with extensions: tests only with _test.go.
func walk(t *testing.T, extensions string, visitor func(path, text string)) {
	t.Helper()
	for _, extension := range strings.Fields(extensions) {
		require.NoError(t, visit(extension, func(path string) error {
			visitor(path, read(t, path))
			return nil
		}))
	}
}

func visit(extension string, visitor func(path string) error) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		isTest := strings.HasSuffix(path, "_test.go")
		if !entry.IsDir() && strings.HasSuffix(path, extension) && isTest == (extension == "_test.go") &&
			entry.Name() != "CHANGELOG.md" {
			return visitor(path)
		}

		return nil
	})
}
