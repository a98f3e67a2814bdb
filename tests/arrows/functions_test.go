package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// functionLink is a link of a page to a function: its text is the function as Go's documentation
// writes it.
var functionLink = regexp.MustCompile("\\[`([^`]+)`\\]\\(([^)]+\\.go)\\)")

// The page that leads a newcomer through the code names functions that are there.
func TestPageOfFunctions(t *testing.T) {
	t.Parallel()

	const page = root + "/docs/project/message-life.md"
	text := read(t, page)
	way, _, found := strings.Cut(text, "\n## ")
	require.True(t, found)
	assert.Len(t, functionLink.FindAllString(way, -1), 12, "functions of the way")
	for _, link := range functionLink.FindAllStringSubmatch(text, -1) {
		file := filepath.Join(filepath.Dir(page), link[2])
		assert.Contains(t, functionsOf(t, file), link[1], "functions of %s", link[2])
	}
}

// functionsOf are the functions and methods of a file.
func functionsOf(t *testing.T, path string) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, decl := range file.Decls {
		function, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := function.Name.Name
		if function.Recv != nil {
			switch receiver := function.Recv.List[0].Type.(type) {
			case *ast.StarExpr:
				name = "(*" + receiver.X.(*ast.Ident).Name + ")." + name
			case *ast.Ident:
				name = "(" + receiver.Name + ")." + name
			}
		}
		names = append(names, name)
	}

	return names
}

// rapid names a generator while another goroutine draws from it, which is a data race: generators
// belong to one test.
func TestGeneratorsAreNotShared(t *testing.T) {
	t.Parallel()

	shared := regexp.MustCompile(`(?m)^(var\s+|\t)\w+(\s+\*rapid\.Generator\S+)?\s+= rapid\.`)
	require.Regexp(t, shared, "\nvar anyText = rapid.String()")
	walk(t, "_test.go .go", func(path, text string) {
		assert.Empty(t, shared.FindString(text), "%s: a function that makes it anew has no race", path)
	})
}
