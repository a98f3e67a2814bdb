package arrows

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// size is what a folder has of Go that is not for tests.
type size struct {
	lines, files, names int
	code                int // lines that are neither empty nor only a comment
}

func (s *size) add(o size) {
	s.lines, s.files, s.names, s.code = s.lines+o.lines, s.files+o.files, s.names+o.names, s.code+o.code
}

// sizes are those of all folders with code, by path from the root. What is only for tests, and
// examples, has none.
func sizes(t *testing.T) map[string]size {
	t.Helper()
	all := map[string]size{}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		folder := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), root+"/")
		code, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, code, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s := all[folder]
		s.add(size{lines: strings.Count(string(code), "\n"), files: 1, names: exported(file),
			code: linesOfCode(code)})
		all[folder] = s

		return nil
	}))

	return all
}

// linesOfCode counts the lines with code on them.
func linesOfCode(code []byte) int {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(code))
	var tokens scanner.Scanner
	tokens.Init(file, code, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, literal := tokens.Scan()
		switch {
		case tok == token.EOF:
			return len(lines)
		case tok == token.SEMICOLON && literal == "\n": // none that is written
		default:
			for line := file.Line(pos); line <= file.Line(pos+token.Pos(len(literal))); line++ {
				lines[line] = true
			}
		}
	}
}

// exported counts the names of a file that its package exports; methods and fields belong to their
// type.
func exported(file *ast.File) (n int) {
	count := func(name *ast.Ident) {
		if name.IsExported() {
			n++
		}
	}
	for _, decl := range file.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				count(d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					count(s.Name)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						count(name)
					}
				}
			}
		}
	}

	return n
}

// A budget holds for a folder, or with /... for all below it that have no budget of their own.
type budget struct {
	path         string
	lines, names int
}

func budgets(t *testing.T) []budget {
	t.Helper()
	var all []budget
	for line := range strings.Lines(read(t, "sizes.txt")) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		require.Len(t, fields, 3, line)
		lines, err := strconv.Atoi(fields[1])
		require.NoError(t, err, line)
		names, err := strconv.Atoi(fields[2])
		require.NoError(t, err, line)
		all = append(all, budget{fields[0], lines, names})
	}
	// The longest path counts.
	slices.SortStableFunc(all, func(a, b budget) int { return cmp.Compare(len(b.path), len(a.path)) })

	return all
}

// Every folder is within its budget of lines and of exported names, and close to it: what becomes
// smaller stays so.
func TestSizes(t *testing.T) {
	t.Parallel()

	used, all := map[string]*size{}, budgets(t)
	found := sizes(t)
	for folder, s := range found {
		i := slices.IndexFunc(all, func(b budget) bool {
			parent, below := strings.CutSuffix(b.path, "/...")
			return folder == parent || below && strings.HasPrefix(folder, parent+"/")
		})
		if !assert.GreaterOrEqual(t, i, 0, "%s has no budget in sizes.txt", folder) {
			continue
		}
		if used[all[i].path] == nil {
			used[all[i].path] = &size{}
		}
		used[all[i].path].add(s)
	}
	slices.SortFunc(all, func(a, b budget) int { return cmp.Compare(a.path, b.path) })
	var table strings.Builder
	var total size
	row := func(path string, s size, lines, names string) {
		fmt.Fprintf(&table, "%-42s %6d %6s %6d %5d %6d %6s\n", path, s.lines, lines, s.code, s.files, s.names, names)
	}
	fmt.Fprintf(&table, "\n%-42s %6s %6s %6s %5s %6s %6s\n", "folder", "lines", "most", "code", "files", "names",
		"most")
	for _, b := range all {
		s := used[b.path]
		if !assert.NotNil(t, s, "%s in sizes.txt is no folder with code", b.path) {
			continue
		}
		row(b.path, *s, strconv.Itoa(b.lines), strconv.Itoa(b.names))
		total.add(*s)
		assert.LessOrEqual(t, s.lines, b.lines, "lines of %s: make it smaller, or give sizes.txt a reason", b.path)
		assert.LessOrEqual(t, s.names, b.names, "exported names of %s", b.path)
		assert.GreaterOrEqual(t, s.lines+s.lines/20+50, b.lines, "%s has become smaller: write that into sizes.txt",
			b.path)
	}
	row("all", total, "", "")
	t.Log(table.String())
}
