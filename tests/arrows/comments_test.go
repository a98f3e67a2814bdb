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
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every exported name of the public packages has a comment that begins with the name.
func TestExportedNamesHaveComments(t *testing.T) {
	t.Parallel()
	seen := 0
	walk(t, ".go", func(path string) {
		if !isPublic(path) {
			return
		}
		seen++
		source := parse(t, path, nil)
		for _, problem := range source.comments() {
			t.Error(problem)
		}
	})
	require.Greater(t, seen, 50, "the check must not run empty")
}

// Error texts and log lines of the whole module have one form.
func TestErrorTextsAndLogLines(t *testing.T) {
	t.Parallel()
	seen := 0
	walk(t, ".go", func(path string) {
		if within(path, "tests", "tools", "testkit", "versions") {
			return
		}
		source := parse(t, path, nil)
		seen += len(source.texts())
		for _, problem := range source.badTexts() {
			t.Error(problem)
		}
	})
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
		"a function without a comment": {
			source: "func Do() {}", comments: []string{"Do has no comment"},
		},
		"a comment that begins otherwise": {
			source: "// Does it.\nfunc Do() {}", comments: []string{"the comment of Do does not begin with its name"},
		},
		"a method without a comment": {
			source: "// T is one.\ntype T int\nfunc (T) Do() {}", comments: []string{"T.Do has no comment"},
		},
		"a generic method without a comment": {
			source: "// T is one.\ntype T[E any] int\nfunc (*T[E]) Do() {}", comments: []string{"T.Do has no comment"},
		},
		"a type without a comment": {
			source: "type T int", comments: []string{"T has no comment"},
		},
		"a constant behind another that has a comment": {
			source: "const (\n\t// A is one.\n\tA = 1\n\n\tB = 2\n)", comments: []string{"B has no comment"},
		},
		"a variable whose comment begins otherwise": {
			source: "// The cause.\nvar ErrA = errors.New(\"no\")", comments: []string{
				"the comment of ErrA does not begin with its name",
			},
		},
		"a field without a comment": {
			source: "// T is one.\ntype T struct {\n\t// A is one.\n\tA int\n\n\tB int\n}", comments: []string{
				"T.B has no comment",
			},
		},
		"a method of an interface without a comment": {
			source: "// T is one.\ntype T interface {\n\tDo()\n}", comments: []string{"T.Do has no comment"},
		},
		"a sentence that begins with What": {
			source: "// Do does it. What is done is done.\nfunc Do() {}", comments: []string{
				`the comment of Do: the sentence "What is done is done." begins with What`,
			},
		},
		"a paragraph that begins with Whoever": {
			source: "// Do does it.\n//\n// Whoever calls it, waits.\nfunc Do() {}", comments: []string{
				`the comment of Do: the sentence "Whoever calls it, waits." begins with Whoever`,
			},
		},
		"a field's comment that begins with Who": {
			source: "// T is one.\ntype T struct {\n\tA int // Who asks.\n}", comments: []string{
				`the comment of T.A: the sentence "Who asks." begins with Who`,
			},
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
			texts: []string{
				`"Done. What is left stays": the sentence "What is left stays" begins with What`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := parse(t, "mutant.go", []byte("package p\n\n"+test.source))
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
	set  *token.FileSet
	file *ast.File
}

func parse(t *testing.T, path string, text []byte) source {
	t.Helper()
	set := token.NewFileSet()
	var from any
	if text != nil {
		from = text
	}
	file, err := parser.ParseFile(set, path, from, parser.SkipObjectResolution|parser.ParseComments)
	require.NoError(t, err)

	return source{set, file}
}

func (s source) problem(node ast.Node, format string, args ...any) string {
	place := s.set.Position(node.Pos())

	return fmt.Sprintf("%s %d: ", filepath.ToSlash(place.Filename), place.Line) + fmt.Sprintf(format, args...)
}

// comments returns the problems of the comments of a file's exported names, and of its package comment.
func (s source) comments() []string {
	problems := s.sentences(s.file, "the package", s.file.Doc)
	for _, declaration := range s.file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			problems = append(problems, s.function(d)...)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					problems = append(problems, s.typ(d, spec)...)
				case *ast.ValueSpec:
					problems = append(problems, s.values(d, spec)...)
				}
			}
		}
	}

	return problems
}

// wellKnown are methods that need no comment: their interface says all.
var wellKnown = []string{"Error", "String", "Unwrap"}

func (s source) function(f *ast.FuncDecl) []string {
	name := f.Name.Name
	if !f.Name.IsExported() {
		return nil
	}
	if f.Recv != nil {
		receiver := receiverOf(f)
		if !ast.IsExported(receiver) || f.Doc == nil && slices.Contains(wellKnown, name) {
			return nil
		}
		name = receiver + "." + name
	}

	return s.begins(f, name, f.Name.Name, f.Doc)
}

func receiverOf(f *ast.FuncDecl) string {
	expression := f.Recv.List[0].Type
	for {
		switch e := expression.(type) {
		case *ast.StarExpr:
			expression = e.X
		case *ast.IndexExpr:
			expression = e.X
		case *ast.IndexListExpr:
			expression = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
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
	problems := s.begins(spec, name, name, doc)
	switch t := spec.Type.(type) {
	case *ast.StructType:
		return append(problems, s.fields(name, doc, t.Fields)...)
	case *ast.InterfaceType:
		return append(problems, s.fields(name, doc, t.Methods)...)
	}

	return problems
}

// fields have comments of their own, or directly below one that has, or are named in the comment of their type.
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

// values are documented one by one, by a comment behind them, or by that of their group, which begins as it likes.
func (s source) values(d *ast.GenDecl, spec *ast.ValueSpec) []string {
	var problems []string
	for _, name := range spec.Names {
		switch {
		case !name.IsExported():
		case !d.Lparen.IsValid():
			problems = append(problems, s.begins(spec, name.Name, name.Name, d.Doc)...)
		case spec.Doc != nil:
			problems = append(problems, s.begins(spec, name.Name, name.Name, spec.Doc)...)
		case spec.Comment == nil && d.Doc == nil:
			problems = append(problems, s.problem(spec, "%s has no comment", name.Name))
		default:
			problems = append(problems, s.sentences(spec, name.Name, d.Doc, spec.Comment)...)
		}
	}

	return problems
}

// begins reports a comment that is missing or does not begin with a name, and sentences that are hard to read.
func (s source) begins(node ast.Node, whole, name string, doc *ast.CommentGroup) []string {
	var problems []string
	switch text := doc.Text(); {
	case text == "":
		return []string{s.problem(node, "%s has no comment", whole)}
	case !regexp.MustCompile(`^((An?|The) )?` + name + `\b|^Deprecated: `).MatchString(text):
		problems = append(problems, s.problem(node, "the comment of %s does not begin with its name", whole))
	}

	return append(problems, s.sentences(node, whole, doc)...)
}

func (s source) sentences(node ast.Node, whole string, docs ...*ast.CommentGroup) []string {
	var problems []string
	for _, doc := range docs {
		for _, sentence := range hard(doc.Text()) {
			word, _, _ := strings.Cut(sentence, " ")
			problems = append(problems, s.problem(node, "the comment of %s: the sentence %q begins with %s", whole,
				sentence, word))
		}
	}

	return problems
}

// hardBeginning is where a sentence begins with a word that hides its subject.
var hardBeginning = regexp.MustCompile(`(?:^|[.!?:] |\n\n|\n *- )((?:What|Who|Whoever|Whatever)\b[^.!?\n]*[.!?]?)`)

// hard returns the sentences of a text that begin with a word that hides their subject.
func hard(text string) []string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, paragraph := range paragraphs {
		if !strings.HasPrefix(paragraph, "\t") && !strings.HasPrefix(paragraph, " ") {
			paragraphs[i] = strings.ReplaceAll(paragraph, "\n", " ")
		}
	}
	var sentences []string
	for _, match := range hardBeginning.FindAllStringSubmatch(strings.Join(paragraphs, "\n\n"), -1) {
		sentences = append(sentences, match[1])
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

// isLogger takes logger.Info, c.logger.Error, logger.With(…).Debug, x.log(…).Error: the methods of watermill's logger, and
// of slog's, of anything whose name says that it logs.
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

// literal is the value of a string literal, or of a sum of strings with one; other parts of it are written as %s.
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
		first, _ := firstRune(text.value)
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
			word, _, _ := strings.Cut(sentence, " ")
			problems = append(problems, s.problem(text.node, "%q: the sentence %q begins with %s", text.value,
				sentence, word))
		}
	}

	return problems
}

func firstRune(text string) (first rune, ok bool) {
	for _, r := range text {
		return r, true
	}

	return 0, false
}
