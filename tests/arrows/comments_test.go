package arrows

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The fields and methods that others can name have comments, and no comment hides its subject. The
// linter checks that the other exported names have comments, which begin with the name.
func TestExportedNamesHaveComments(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, source := range sources(t) {
		if isPublic(source.path) {
			seen++
			assert.Empty(t, source.comments())
		}
	}
	require.Greater(t, seen, 50, "the check must not run empty")
}

// Error texts and log lines of the whole module have one form.
func TestErrorTextsAndLogLines(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, source := range sources(t) {
		if !within(source.path, "tests", "tools", "testkit", "versions") {
			seen += len(source.texts())
			assert.Empty(t, source.badTexts())
		}
	}
	require.Greater(t, seen, 200, "the check must not run empty")
}

// The check itself: it finds each mistake, and only that.
func TestCommentsAndTextsOfMutants(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		source   string
		comments []string
		texts    []string
	}{
		"good": {source: goodSource},
		"a field without a comment": {
			source:   "// T is one.\ntype T struct {\n\t// A is one.\n\tA int\n\n\tB int\n}",
			comments: []string{"T.B has no comment"},
		},
		"a method of an interface without a comment": {
			source:   "// T is one.\ntype T interface {\n\tDo()\n}",
			comments: []string{"T.Do has no comment"},
		},
		"a sentence that begins with What": {
			source:   "// Do does it. What is done is done.\nfunc Do() {}",
			comments: []string{`the comment of Do: the sentence "What is done is done." begins with What`},
		},
		"a paragraph that begins with Whoever": {
			source:   "// Do does it.\n//\n// Whoever calls it, waits.\nfunc Do() {}",
			comments: []string{`the comment of Do: the sentence "Whoever calls it, waits." begins with Whoever`},
		},
		"a field's comment that begins with Who": {
			source:   "// T is one.\ntype T struct {\n\tA int // Who asks.\n}",
			comments: []string{`the comment of T.A: the sentence "Who asks." begins with Who`},
		},
		"an error in upper case": {
			source: `var err = errors.New("Cannot do it")`,
			texts:  []string{`"Cannot do it" begins with a capital letter`},
		},
		"an error with a full stop": {
			source: `var err = fmt.Errorf("cannot do it: " + "%w.", cause)`,
			texts:  []string{`"cannot do it: %w." ends with "."`},
		},
		"an error that begins with Whatever": {
			source: `var err = errors.New("Whatever it is")`,
			texts: []string{
				`"Whatever it is" begins with a capital letter`,
				`"Whatever it is": the sentence "Whatever it is" begins with Whatever`,
			},
		},
		"an Error method with a full stop": {
			source: "func (e *e) Error() string { return fmt.Sprintf(\"cannot do %s.\", e.what) }",
			texts:  []string{`"cannot do %s." ends with "."`},
		},
		"a log line with a full stop": {
			source: `func f() { c.logger.Error("Cannot do it.", err, nil) }`,
			texts:  []string{`"Cannot do it." ends with "."`},
		},
		"a log line in lower case": {
			source: `func f() { logger.Info("done", nil) }`,
			texts:  []string{`"done" begins with a small letter`},
		},
		"a log line that begins with What": {
			source: `func f() { logger().With(nil).Info("Done. What is left stays", nil) }`,
			texts:  []string{`"Done. What is left stays": the sentence "What is left stays" begins with What`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, err := parse("mutant.go", "package p\n\n"+test.source)
			require.NoError(t, err)
			assert.Equal(t, test.comments, withoutPlaces(source.comments()))
			assert.Equal(t, test.texts, withoutPlaces(source.badTexts()))
		})
	}
}

const goodSource = `
// A Thing is one. Whatsoever is no such word; "What" neither.
type Thing struct {
	// Name and size of it.
	Name string
	Size int

	Host string // where it runs
	hidden int
}

// Pair has First and Second.
type Pair struct{ First, Second int }

// Doer does.
type Doer interface {
	// Do does it.
	Do()
	error
}

// The roles.
const (
	RoleA = "a"
	RoleB = "b"
)

const (
	// A is one.
	A = 1
	B = 2 // two
)

// Deprecated: use Thing.
type Old = Thing

// Do does it.
func (t *Thing) Do() error {
	t.logger.Info("The thing is done", nil)
	logger.With("a", 1).Error("RabbitMQ does not answer", err, nil)
	logger.Debug(text, nil)
	return errors.New("AMQP is not spoken")
}

func (t *Thing) String() string { return "What." }
func (t hiding) Do()            {}
func (e *ThingError) Error() string {
	if e.none {
		return "nothing is wrong"
	}
	return fmt.Sprintf("Options.Name: %q is empty", e.name)
}

var err, other = fmt.Errorf("%w: not done", cause), errors.New(text)
`

func withoutPlaces(problems []string) []string {
	var texts []string
	for _, problem := range problems {
		_, text, _ := strings.Cut(problem, ": ")
		texts = append(texts, text)
	}

	return texts
}

// isPublic tells whether others can import the package of a file.
func isPublic(path string) bool {
	return !within(path, "internal", "tests", "tools", "examples", "scripts", "cmd")
}

func within(path string, directories ...string) bool {
	return slices.ContainsFunc(strings.Split(filepath.ToSlash(path), "/"), func(part string) bool {
		return slices.Contains(directories, part)
	})
}

// source is a file that is checked.
type source struct {
	path string
	set  *token.FileSet
	file *ast.File
}

// parsed are the module's files of Go, but no tests.
var parsed = sync.OnceValues(func() (all []source, err error) {
	err = visit(".go", func(path string) error {
		source, err := parse(path, nil)
		all = append(all, source)

		return err
	})

	return all, err
})

func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	require.NoError(t, err)

	return all
}

// parse reads a file, or a text in its place.
func parse(path string, text any) (source, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution|parser.ParseComments)

	return source{path, set, file}, err
}

func (s source) problem(node ast.Node, format string, args ...any) string {
	place := s.set.Position(node.Pos())

	return fmt.Sprintf("%s %d: ", filepath.ToSlash(place.Filename), place.Line) + fmt.Sprintf(format, args...)
}

// comments returns the problems of the comments of a file's exported names, and of its package
// comment.
func (s source) comments() []string {
	problems := s.sentences(s.file, "the package", s.file.Doc)
	for _, declaration := range s.file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				problems = append(problems, s.sentences(d, d.Name.Name, d.Doc)...)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					problems = append(problems, s.typ(d, spec)...)
				case *ast.ValueSpec:
					if slices.ContainsFunc(spec.Names, (*ast.Ident).IsExported) {
						name := spec.Names[0].Name
						problems = append(problems, s.sentences(spec, name, cmp.Or(spec.Doc, d.Doc), spec.Comment)...)
					}
				}
			}
		}
	}

	return problems
}

func (s source) typ(d *ast.GenDecl, spec *ast.TypeSpec) []string {
	if !spec.Name.IsExported() {
		return nil
	}
	doc := spec.Doc
	if !d.Lparen.IsValid() {
		doc = d.Doc
	}
	name := spec.Name.Name
	problems := s.sentences(spec, name, doc)
	switch t := spec.Type.(type) {
	case *ast.StructType:
		return append(problems, s.fields(name, doc, t.Fields)...)
	case *ast.InterfaceType:
		return append(problems, s.fields(name, doc, t.Methods)...)
	}

	return problems
}

// fields have comments of their own, or directly below one that has, or are named in the comment of
// their type.
func (s source) fields(of string, doc *ast.CommentGroup, list *ast.FieldList) []string {
	var problems []string
	line, commented := 0, false
	for _, field := range list.List {
		begin := s.set.Position(field.Pos()).Line
		own := field.Doc != nil || field.Comment != nil
		commented = own || commented && begin == line+1
		line = s.set.Position(field.End()).Line
		for _, name := range field.Names {
			if !name.IsExported() {
				continue
			}
			whole := of + "." + name.Name
			if !commented && !regexp.MustCompile(`\b`+name.Name+`\b`).MatchString(doc.Text()) {
				problems = append(problems, s.problem(field, "%s has no comment", whole))
			}
			problems = append(problems, s.sentences(field, whole, field.Doc, field.Comment)...)
		}
	}

	return problems
}

func (s source) sentences(node ast.Node, whole string, docs ...*ast.CommentGroup) []string {
	var problems []string
	for _, doc := range docs {
		for _, sentence := range hard(doc.Text()) {
			problems = append(problems, s.problem(node, "the comment of %s: %s", whole, sentence))
		}
	}

	return problems
}

// hardBeginning is where a sentence begins with a word that hides its subject.
var hardBeginning = regexp.MustCompile(`(?:^|[.!?:] |\n\n|\n *- )((?:What|Who|Whoever|Whatever)\b[^.!?\n]*[.!?]?)`)

// hard tells which sentences of a text begin with a word that hides their subject.
func hard(text string) []string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, paragraph := range paragraphs {
		if !strings.HasPrefix(paragraph, "\t") && !strings.HasPrefix(paragraph, " ") {
			paragraphs[i] = strings.ReplaceAll(paragraph, "\n", " ")
		}
	}
	var sentences []string
	for _, match := range hardBeginning.FindAllStringSubmatch(strings.Join(paragraphs, "\n\n"), -1) {
		word, _, _ := strings.Cut(match[1], " ")
		sentences = append(sentences, fmt.Sprintf("the sentence %q begins with %s", match[1], word))
	}

	return sentences
}

// text is that of an error or of a log line.
type text struct {
	node  ast.Node
	value string
	log   bool
}

// texts returns a file's error texts and log lines, as far as they are written where they are used.
func (s source) texts() []text {
	var texts []text
	add := func(node ast.Node, argument ast.Expr, log bool) {
		if value, ok := literal(argument); ok {
			texts = append(texts, text{node, value, log})
		}
	}
	ast.Inspect(s.file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.CallExpr:
			if len(n.Args) == 0 {
				break
			}
			switch function := name(n.Fun); {
			case function == "errors.New", function == "fmt.Errorf":
				add(n, n.Args[0], false)
			case isLogger(n.Fun):
				add(n, n.Args[0], true)
			}
		case *ast.FuncDecl:
			if n.Name.Name == "Error" && n.Recv != nil && n.Body != nil {
				ast.Inspect(n.Body, func(node ast.Node) bool {
					returned, is := node.(*ast.ReturnStmt)
					if !is || len(returned.Results) != 1 {
						return true
					}
					value := returned.Results[0]
					if call, is := value.(*ast.CallExpr); is && name(call.Fun) == "fmt.Sprintf" {
						value = call.Args[0]
					}
					add(returned, value, false)

					return true
				})
			}
		}

		return true
	})
	slices.SortStableFunc(texts, func(a, b text) int { return cmp.Compare(a.node.Pos(), b.node.Pos()) })

	return texts
}

// isLogger takes logger.Info, c.logger.Error, logger.With(…).Debug, x.log(…).Error: the methods of
// watermill's logger, and of slog's, of anything whose name says that it logs.
func isLogger(function ast.Expr) bool {
	selector, is := function.(*ast.SelectorExpr)
	if !is || !slices.Contains([]string{"Error", "Info", "Debug", "Trace", "Warn"}, selector.Sel.Name) {
		return false
	}
	found := false
	ast.Inspect(selector.X, func(node ast.Node) bool {
		if name, is := node.(*ast.Ident); is && strings.HasPrefix(strings.ToLower(name.Name), "log") {
			found = true
		}

		return !found
	})

	return found
}

// name is that of a function of a package.
func name(function ast.Expr) string {
	selector, is := function.(*ast.SelectorExpr)
	if !is {
		return ""
	}
	pkg, is := selector.X.(*ast.Ident)
	if !is {
		return ""
	}

	return pkg.Name + "." + selector.Sel.Name
}

// literal is the value of a string literal, or of a sum of strings with one; other parts of it are
// written as %s.
func literal(expression ast.Expr) (value string, ok bool) {
	switch e := expression.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			value, err := strconv.Unquote(e.Value)

			return value, err == nil
		}
	case *ast.ParenExpr:
		return literal(e.X)
	case *ast.BinaryExpr:
		left, isLeft := literal(e.X)
		right, isRight := literal(e.Y)
		if !isLeft {
			left = "%s"
		}
		if !isRight {
			right = "%s"
		}

		return left + right, isLeft || isRight
	}

	return "", false
}

// identifier is a name that is written as it is in code, or an acronym: it may begin an error text.
var identifier = regexp.MustCompile(`^[A-Z]+s?\b|^[A-Z]\w*[.:A-Z(=]|^(RabbitMQ|Watermill)\b`)

func (s source) badTexts() []string {
	var problems []string
	for _, text := range s.texts() {
		first, _ := utf8.DecodeRuneInString(text.value)
		switch {
		case text.log && unicode.IsLower(first):
			problems = append(problems, s.problem(text.node, "%q begins with a small letter", text.value))
		case !text.log && unicode.IsUpper(first) && !identifier.MatchString(text.value):
			problems = append(problems, s.problem(text.node, "%q begins with a capital letter", text.value))
		}
		if last := strings.TrimRight(text.value, " "); strings.HasSuffix(last, ".") || strings.HasSuffix(last, "\n") ||
			strings.HasSuffix(last, "!") {
			problems = append(problems, s.problem(text.node, "%q ends with %q", text.value, last[len(last)-1:]))
		}
		for _, sentence := range hard(text.value) {
			problems = append(problems, s.problem(text.node, "%q: %s", text.value, sentence))
		}
	}

	return problems
}
