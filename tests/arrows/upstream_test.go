package arrows

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// upstream is a fault, or a change, of RabbitMQ or of a library that code of this module works
// around. The comment at the workaround has it as a paragraph:
//
//	Upstream: what it is; its cause; versions; tests; remove when …
//
// Another place with the same fault has its name only: "Upstream: what it is."
type upstream struct {
	fault, cause, versions, remove string

	tests  []string
	places map[string]bool // paths from the root
}

const (
	issueForm   = `[\w.-]+/[\w.-]+#\d+(?: \([^)]+\))?`
	versionForm = `(?:RabbitMQ|amqp091-go|watermill|watermill-amqp) (?:before )?\d+\.\d+(?:\.\d+)?` +
		`(?: (?:to|and) \d+\.\d+| and later)?(?: \([^)]+\))?`
	testForm = `(?:Test|Fuzz)\w+`
)

var (
	markForm = regexp.MustCompile(`^Upstream: ([^;]+); (no issue known, measured|no issue known, read in its source|` +
		`(?:release notes|documentation) of RabbitMQ \d\.\d+|` +
		issueForm + `(?:, ` + issueForm + `)*(?:, measured)?); (` +
		versionForm + `(?:, ` + versionForm + `)*); (no test|` +
		testForm + `(?:, ` + testForm + `)*); remove when ([^;]+)\.$`)
	referenceForm = regexp.MustCompile(`^Upstream: ([^;]+)\.$`)
	issueName     = regexp.MustCompile(`([\w.-]+)/([\w.-]+)#(\d+)`)
	// serverVersion is one of RabbitMQ in a text. A number with more digits is none, such as the
	// name of a ladder.
	serverVersion = regexp.MustCompile(`(?:^|[^\d.\w])(?:3\.1\d|4\.[0-4]|[34]\."$)(?:$|[^\d])`)
)

// unmarked are declarations that name versions without a mark, each with the reason.
var unmarked = map[string]string{
	"cmd/amqpretry/internal/cli/connection.go connectionFlagSet": "help that names what safety of package dlq refuses",
	"cmd/amqpretry/internal/dlqcmd/operation.go ":                "help that names what HoldsBack tells",
	"config/topology/errors.go Error":                            "the text of what DelaysRetries leads to",
	"internal/connection/link.go Version":                        "an example",
	"internal/header/keys.go ":                                   "why a prefix is none of the broker's",
	"internal/httpapi/overview.go FeatureFlags":                  "the text of a refusal; the flags are for doctor",
	"middleware/protect/store/sqlstore/mysql.go errorNumber":     "an exported field, of a driver that is not imported",
}

// marks returns the paragraphs of a comment that begin as marks.
func marks(group *ast.CommentGroup) (found []string) {
	for paragraph := range strings.SplitSeq(group.Text(), "\n\n") {
		if text := strings.Join(strings.Fields(paragraph), " "); strings.HasPrefix(text, "Upstream:") {
			found = append(found, text)
		}
	}

	return found
}

// readMark reads a mark, or a reference to one.
func readMark(text string) (u upstream, isReference bool, err error) {
	if m := referenceForm.FindStringSubmatch(text); m != nil {
		return upstream{fault: m[1]}, true, nil
	}
	m := markForm.FindStringSubmatch(text)
	if m == nil {
		return u, false, fmt.Errorf("%q has not the form %q", text,
			"Upstream: what; cause; versions; tests; remove when ….")
	}

	u = upstream{fault: m[1], cause: m[2], versions: m[3], remove: m[5], places: map[string]bool{}}
	if m[4] != "no test" {
		u.tests = strings.Split(m[4], ", ")
	}

	return u, false, nil
}

// fromRoot is the path of a file from the root.
func (s source) fromRoot() string {
	path, err := filepath.Rel(root, s.path)
	if err != nil {
		return s.path
	}

	return filepath.ToSlash(path)
}

func nameOf(decl ast.Decl) string {
	if f, ok := decl.(*ast.FuncDecl); ok {
		return f.Name.Name
	}

	return ""
}

// marksOf are the marks in the comments of a declaration.
func (s source) marksOf(decl ast.Decl) (found []string) {
	for _, group := range s.commentsOf(decl) {
		found = append(found, marks(group)...)
	}

	return found
}

// tellsVersions reports whether a comment of a declaration names a version of the broker.
func (s source) tellsVersions(decl ast.Decl) bool {
	return slices.ContainsFunc(s.commentsOf(decl), func(group *ast.CommentGroup) bool {
		return serverVersion.MatchString(group.Text())
	})
}

// commentsOf are the comments of a declaration, those inside of it too.
func (s source) commentsOf(decl ast.Decl) (found []*ast.CommentGroup) {
	begin, end := decl.Pos(), decl.End()
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Doc != nil {
			begin = d.Doc.Pos()
		}
	case *ast.GenDecl:
		if d.Doc != nil {
			begin = d.Doc.Pos()
		}
	}
	for _, group := range s.file.Comments {
		if group.Pos() >= begin && group.End() <= end {
			found = append(found, group)
		}
	}

	return found
}

// knowledge is what a declaration knows of versions, and of the insides of others.
type knowledge struct {
	calls    []string // functions of package rabbitmq
	compares bool     // a version itself
	reflects bool     // on unexported fields, by their names
	names    bool     // a version in a text
}

func know(decl ast.Decl, inRabbitMQ bool) (k knowledge) {
	ast.Inspect(decl, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "rabbitmq" {
				k.calls = append(k.calls, n.Sel.Name)
				k.compares = k.compares || n.Sel.Name == "AtLeast"
			}
			k.reflects = k.reflects || n.Sel.Name == "FieldByName"
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && inRabbitMQ {
				k.compares = k.compares || f.Name == "AtLeast" || f.Name == "parse"
			}
		case *ast.BasicLit:
			k.names = k.names || n.Kind == token.STRING && serverVersion.MatchString(n.Value)
		}

		return true
	})

	return k
}

// upstreams collects the marks of the module, and reports what is wrong with them.
func upstreams(t *testing.T) map[string]upstream {
	t.Helper()
	all, byFunction, references := map[string]upstream{}, map[string][]string{}, map[string][]string{}
	code := slices.DeleteFunc(slices.Clone(sources(t)), func(s source) bool {
		return within(s.path, "tests", "tools", "testkit", "versions", "examples")
	})
	for _, s := range code {
		marked, count := 0, 0
		for _, group := range s.file.Comments {
			count += len(marks(group))
		}
		for _, decl := range s.file.Decls {
			for _, text := range s.marksOf(decl) {
				marked++
				u, isReference, err := readMark(text)
				if !assert.NoError(t, err, s.fromRoot()) {
					continue
				}
				if strings.HasPrefix(s.fromRoot(), "internal/rabbitmq/") {
					byFunction[nameOf(decl)] = append(byFunction[nameOf(decl)], u.fault)
				}
				references[u.fault] = append(references[u.fault], s.fromRoot())
				if isReference {
					continue
				}
				_, twice := all[u.fault]
				assert.False(t, twice, "%s: %q has a whole mark elsewhere: write its name only", s.fromRoot(), u.fault)
				all[u.fault] = u
			}
		}
		assert.Equal(t, count, marked, "%s has a mark that belongs to no declaration", s.fromRoot())
	}
	used := map[string]bool{}
	for _, s := range code {
		for _, decl := range s.file.Decls {
			place := s.fromRoot() + " " + nameOf(decl)
			isMarked := len(s.marksOf(decl)) > 0
			inRabbitMQ := strings.HasPrefix(place, "internal/rabbitmq/")
			k := know(decl, inRabbitMQ)
			if within(s.path, "internal") { // elsewhere comments are for users
				k.names = k.names || s.tellsVersions(decl)
			}
			for _, function := range k.calls {
				for _, fault := range byFunction[function] {
					references[fault] = append(references[fault], s.fromRoot())
					isMarked = true
				}
			}
			isBasic := inRabbitMQ && (nameOf(decl) == "AtLeast" || nameOf(decl) == "parse")
			assert.False(t, k.compares && !inRabbitMQ, "%s compares a version: that is for internal/rabbitmq", place)
			if isMarked || isBasic || !k.compares && !k.reflects && !k.names {
				continue
			}
			assert.NotEmpty(t, unmarked[place], "%s: no mark \"Upstream: …\" says which fault this is about", place)
			used[place] = true
		}
	}
	for place := range unmarked {
		assert.True(t, used[place], "%s needs no exception", place)
	}
	for fault, places := range references {
		if _, is := all[fault]; assert.True(t, is, "%s: no whole mark describes %q", places, fault) {
			for _, place := range places {
				all[fault].places[place] = true
			}
		}
	}

	return all
}

// Each workaround names its upstream cause and a test that exists, and nothing but package rabbitmq
// compares versions.
func TestUpstreamCauses(t *testing.T) {
	t.Parallel()
	found := upstreams(t)
	require.Greater(t, len(found), 30, "the check must not run empty")
	tests := testNames(t)
	for _, u := range found {
		for _, name := range u.tests {
			assert.True(t, tests[name], "%s, of %q, is no test", name, u.fault)
		}
	}
}

// testNames are the names of all tests of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	form := regexp.MustCompile(`(?m)^func (` + testForm + `)\(`)
	walk(t, "_test.go", func(_, code string) {
		for _, m := range form.FindAllStringSubmatch(code, -1) {
			names[m[1]] = true
		}
	})

	return names
}

// The page has a row for each. UPDATE=yes writes them.
func TestUpstreamPage(t *testing.T) {
	t.Parallel()
	const page = root + "/docs/project/upstream.md"
	const head = "| what | upstream | versions | where | tests | remove when |\n"
	var rows strings.Builder
	rows.WriteString(head + "|---|---|---|---|---|---|\n")
	for _, u := range slices.SortedFunc(maps.Values(upstreams(t)), func(a, b upstream) int {
		libraryOf := func(u upstream) string { name, _, _ := strings.Cut(u.versions, " "); return name }
		return cmp.Or(cmp.Compare(libraryOf(a), libraryOf(b)), cmp.Compare(a.fault, b.fault))
	}) {
		rows.WriteString(u.row())
	}
	text := read(t, page)
	before, rest, found := strings.Cut(text, head)
	require.True(t, found, "%s has no table with the head %s", page, head)
	_, after, _ := strings.Cut(rest, "\n\n")
	if after != "" {
		after = "\n" + after
	}
	wanted := before + rows.String() + after
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(page, []byte(wanted), 0o600))
		return
	}
	assert.Equal(t, wanted, text, "%s: UPDATE=yes go test ./tests/arrows -run TestUpstreamPage writes it", page)
}

func (u upstream) row() string {
	places := slices.Sorted(maps.Keys(u.places))
	for i, place := range places {
		name := strings.NewReplacer("cmd/amqpretry/internal/", "", "internal/", "", ".go", "").Replace(place)
		places[i] = fmt.Sprintf("[%s](../../%s)", name, place)
	}
	tests := "no test"
	if len(u.tests) > 0 {
		tests = "`" + strings.Join(u.tests, "`, `") + "`"
	}
	cause := issueName.ReplaceAllString(u.cause, "[$2#$3](https://github.com/$1/$2/issues/$3)")

	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |\n", u.fault, cause, u.versions, strings.Join(places, ", "),
		tests, u.remove)
}

// The check itself: it knows each part of a mark.
func TestUpstreamMarks(t *testing.T) {
	t.Parallel()
	const whole = "Upstream: a fault; rabbitmq/rabbitmq-server#1 (how), a/b#2, measured; RabbitMQ 3.10 to 4.2, " +
		"amqp091-go 1.16 (with RabbitMQ 4.3); TestA, FuzzB_C; remove when it is gone."
	for text, isRight := range map[string]bool{
		whole: true,
		"Upstream: a fault; no issue known, measured; watermill-amqp 2.1 and 3.1; TestA; remove when gone.": true,
		"Upstream: a fault; release notes of RabbitMQ 4.0; RabbitMQ before 3.10; TestA; remove when gone.":  true,
		"Upstream: a fault.":                                                       true,
		"Upstream: a fault":                                                        false,
		strings.Replace(whole, "#1", "", 1):                                        false,
		strings.Replace(whole, "RabbitMQ 3.10", "old", 1):                          false,
		strings.Replace(whole, "TestA", "tests", 1):                                false,
		strings.Replace(whole, "remove when", "while", 1):                          false,
		"Upstream: a fault; somebody said; RabbitMQ 4.0; TestA; remove when gone.": false,
	} {
		_, isReference, err := readMark(text)
		assert.Equal(t, isRight, err == nil, text)
		assert.Equal(t, text == "Upstream: a fault.", isReference, text)
	}
	for text, names := range map[string]bool{"RabbitMQ 4.3 and later": true, "before 3.10": true, "4.0.5": true, `"3."`: true,
		"amqpretry.delay.v1.100ms.10x6": false, "14.3": false, "v4.3": false, "1.4.3": false, "4.35": false} {
		assert.Equal(t, names, serverVersion.MatchString(text), text)
	}
}

// The check itself: it sees what a declaration knows, and the marks in its comments only.
func TestUpstreamKnowledge(t *testing.T) {
	t.Parallel()
	s, err := parse("x.go", `package x

// a is marked.
//
// Upstream: one fault.
func a(v string) bool { return rabbitmq.AtLeast(v, 4, 3) }

func b(v reflect.Value) { v.FieldByName("x") }

func c() string {
	// Not so before 4.0.
	//
	// Upstream: another fault.
	return "RabbitMQ 4.3"
}

func d(v string) bool { return AtLeast(v, 4, 3) }
`)
	require.NoError(t, err)
	for i, want := range []knowledge{
		{calls: []string{"AtLeast"}, compares: true}, {reflects: true}, {names: true}, {},
	} {
		assert.Equal(t, want, know(s.file.Decls[i], false), "declaration %d", i)
		assert.Equal(t, i == 2, s.tellsVersions(s.file.Decls[i]), "declaration %d", i)
	}
	assert.True(t, know(s.file.Decls[3], true).compares)
	assert.Equal(t, []string{"Upstream: one fault."}, s.marksOf(s.file.Decls[0]))
	assert.Empty(t, s.marksOf(s.file.Decls[1]))
	assert.Equal(t, []string{"Upstream: another fault."}, s.marksOf(s.file.Decls[2]))
}
