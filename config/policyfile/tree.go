package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"

	"github.com/amqpretry/watermill-retry/config"
)

// kind of a value in a file. It is named in errors.
type kind string

const (
	kindNull    kind = "nothing"
	kindBoolean kind = "a boolean"
	kindNumber  kind = "a number"
	kindText    kind = "text"
	kindList    kind = "a list"
	kindMapping kind = "a mapping"
)

// node is a value of a file, whatever its syntax: aliases are followed, merge keys are merged. It
// is read only, as an alias is the same node in several places.
type node struct {
	kind    kind
	text    string // of a scalar, as it is written
	line    int
	items   []*node
	entries []entry
	twice   []entry // whose keys were there before
}

type entry struct {
	key    string
	line   int
	before int // of twice: the line where the key was first
	value  *node
}

// Bounds of a file. A real one is far below: they keep small what a file can cost that was made to
// cost much. The work of the parser, for one, grows with the square of the entries of a mapping and
// with the depth.
const (
	maxFileBytes   = 1 << 20
	maxFileTokens  = 50_000 // names, values and punctuation
	maxFileDepth   = 16
	maxScalarBytes = 1024
	maxFileValues  = 100_000 // with those that aliases repeat
)

var (
	numberRegexp  = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	booleanRegexp = regexp.MustCompile(`^(true|True|TRUE|false|False|FALSE)$`)
	nullRegexp    = regexp.MustCompile(`^(null|Null|NULL|~|)$`)
)

// plain is a scalar without quotes: what it is, its text says. These are the rules of YAML 1.2, so
// "off" is text.
func plain(text string, line int) *node {
	n := &node{kind: kindText, text: text, line: line}
	switch {
	case nullRegexp.MatchString(text):
		n.kind = kindNull
	case booleanRegexp.MatchString(text):
		n.kind = kindBoolean
	case numberRegexp.MatchString(text):
		n.kind = kindNumber
	}
	return n
}

// String describes the node for an error.
func (n *node) String() string {
	switch n.kind {
	case kindText:
		return shortened(strconv.Quote(n.text))
	case kindNumber, kindBoolean:
		return shortened(n.text) + " (" + string(n.kind) + ")"
	}
	return string(n.kind)
}

func shortened(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// readTree reads YAML or JSON, which is YAML too. An empty text is a nil node. The error is a list:
// some faults do not keep it from reading on, and then there is a node as well.
func readTree(data []byte) (tree *node, errs []error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	data = bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
	if err := checkText(data); err != nil {
		return nil, []error{err}
	}
	if json.Valid(data) { // its tabs are all between values: the parser takes them in some places only
		data = bytes.ReplaceAll(data, []byte("\t"), []byte(" "))
	}
	tokens, err := scan(data)
	if err != nil {
		return nil, []error{err}
	}
	file, err := parse(tokens)
	if err != nil {
		return nil, []error{err}
	}
	r := reader{anchors: map[string]*node{}}
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.DirectiveType:
		case tree != nil:
			r.fail(line(doc.Body), "a second document", "one document, without another below a line of ---", "")
			return nil, r.errs
		default:
			tree = r.read(doc.Body)
		}
	}
	return tree, r.errs
}

func checkText(data []byte) error {
	at := func(i int) int { return 1 + bytes.Count(data[:i], []byte("\n")) }
	if len(data) > maxFileBytes {
		return &config.FieldError{Problem: "too long", Wanted: fmt.Sprintf("at most %d bytes", maxFileBytes),
			Found: "more"}
	}
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return &config.FieldError{Line: at(i), Problem: "no text", Wanted: "UTF-8",
				Found: fmt.Sprintf("the byte %#x", data[i])}
		}
		if r < ' ' && r != '\t' && r != '\n' {
			return &config.FieldError{Line: at(i), Problem: "no text", Wanted: "without control characters",
				Found: strconv.QuoteRune(r)}
		}
		i += size
	}
	return nil
}

// scan splits the text as the parser wants it, and keeps from the parser what it would take long
// for, or more stack than there is.
func scan(data []byte) (tokens token.Tokens, err error) {
	var s scanner.Scanner
	s.Init(string(data))
	var b bounds
	for {
		next, err := s.Scan()
		if errors.Is(err, io.EOF) {
			return tokens, nil
		}
		for _, t := range next {
			if err := b.check(t); err != nil {
				return nil, err
			}
		}
		tokens.Add(next...)
	}
}

// bounds counts what was scanned.
type bounds struct {
	count, flow, line int
	headers           int   // lines of ---
	columns           []int // where the mappings and lists begin that are open, outside of brackets
}

func (b *bounds) check(t *token.Token) error {
	if t.Type == token.CommentType {
		return nil
	}
	b.count++
	switch {
	case t.Type == token.DocumentHeaderType:
		b.headers++
	case t.Type == token.MappingStartType || t.Type == token.SequenceStartType:
		b.flow++
	case t.Type == token.MappingEndType || t.Type == token.SequenceEndType:
		b.flow--
	case b.flow == 0 && (t.Position.Line != b.line || t.Type == token.SequenceEntryType ||
		t.Type == token.MappingKeyType):
		for len(b.columns) > 0 && b.columns[len(b.columns)-1] >= t.Position.Column {
			b.columns = b.columns[:len(b.columns)-1]
		}
		b.columns = append(b.columns, t.Position.Column)
	}
	b.line = t.Position.Line
	fault := func(problem string, bound int, unit string) error {
		return &config.FieldError{Line: t.Position.Line, Problem: problem, Wanted: fmt.Sprintf("at most %d %s", bound,
			unit), Found: "more"}
	}
	switch {
	case b.headers > 1: // the parser drops what is below the second of two without a word
		return &config.FieldError{Line: t.Position.Line, Problem: "a second document", Wanted: "one document, " +
			"without another below a line of ---"}
	case isPlain(t) && strings.Contains(strings.TrimSpace(t.Origin), "\t") && !strings.Contains(t.Value, "\t"):
		// it drops the tab
		return &config.FieldError{Line: t.Position.Line, Problem: "a tab inside of a name or value",
			Wanted: "a space, or \\t in double quotes"}
	case b.count > maxFileTokens:
		return fault("too much", maxFileTokens, "names, values and signs")
	case b.flow+len(b.columns) > maxFileDepth:
		return fault("nested too deep", maxFileDepth, "levels")
	case len(t.Value) > maxScalarBytes:
		return fault("too long", maxScalarBytes, "bytes for one value")
	case b.flow < 0:
		return &config.FieldError{Line: t.Position.Line, Problem: "neither YAML nor JSON: a bracket is closed that " +
			"was not opened", Found: t.Value}
	}
	return nil
}

func isPlain(t *token.Token) bool {
	return t.Type == token.StringType || t.Type == token.IntegerType || t.Type == token.FloatType
}

// parse never panics, whatever the parser does.
func parse(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &config.FieldError{Problem: fmt.Sprintf("neither YAML nor JSON: the parser failed: %v", r)}
		}
	}()
	file, err = parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err == nil {
		return file, nil
	}
	fault := &config.FieldError{Problem: "neither YAML nor JSON: " + err.Error()}
	var at interface {
		GetMessage() string
		GetToken() *token.Token
	}
	if errors.As(err, &at) {
		fault.Problem = "neither YAML nor JSON: " + at.GetMessage()
		if t := at.GetToken(); t != nil && t.Position != nil {
			fault.Line = t.Position.Line
		}
		if slices.ContainsFunc(tokens, func(t *token.Token) bool {
			return t.Type == token.AliasType && t.Position.Line == fault.Line
		}) {
			fault.Wanted = "in quotes where text begins with *"
		}
	}
	return nil, fault
}

// reader makes nodes of the parser's tree.
type reader struct {
	anchors map[string]*node
	merged  int
	errs    []error
}

func (r *reader) fail(line int, problem, wanted, found string) {
	r.errs = append(r.errs, &config.FieldError{Line: line, Problem: problem, Wanted: wanted, Found: found})
}

// line of a node, as far as it has one.
func line(n ast.Node) int {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

func (r *reader) read(n ast.Node) *node {
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return &node{kind: kindNull, line: line(n)}
	case *ast.MappingNode:
		return r.mapping(n, n.Values)
	case *ast.MappingValueNode:
		return r.mapping(n, []*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		list := &node{kind: kindList, line: line(n)}
		for _, item := range n.Values {
			list.items = append(list.items, r.read(item))
		}
		return list
	case *ast.AnchorNode:
		value := r.read(n.Value)
		r.anchors[n.Name.GetToken().Value] = value
		return value
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		if value, ok := r.anchors[name]; ok {
			return value
		}
		r.fail(line(n), "unknown alias", "in quotes if it is text; an alias needs its anchor above, &"+shortened(name),
			"*"+shortened(name))
	case *ast.TagNode:
		r.fail(line(n), "a tag", "left out: what a value is, the field says", n.Start.Value)
	case *ast.StringNode:
		if t := n.Token.Type; t != token.SingleQuoteType && t != token.DoubleQuoteType {
			return plain(n.Value, line(n))
		}
		return &node{kind: kindText, text: n.Value, line: line(n)}
	case *ast.LiteralNode:
		return &node{kind: kindText, text: n.Value.Value, line: line(n)}
	case ast.ScalarNode:
		return plain(n.GetToken().Value, line(n))
	default:
		r.fail(line(n), "not understood", "a scalar, a list or a mapping", n.Type().YAMLName())
	}
	return &node{kind: kindNull, line: line(n)}
}

func (r *reader) mapping(n ast.Node, values []*ast.MappingValueNode) *node {
	m := &node{kind: kindMapping, line: line(n)}
	keys := map[string]int{} // with their lines
	var merges []*node
	for _, v := range values {
		key, isMerge := r.key(v.Key)
		value := r.read(v.Value)
		if isMerge {
			merges = append(merges, r.merge(value)...)
		}
		e := entry{key: key.text, line: key.line, value: value}
		switch {
		case key.kind == kindNull || key.kind == kindList || key.kind == kindMapping:
			r.fail(key.line, "cannot be a key", "text, in quotes if need be", key.String())
		case keys[e.key] != 0:
			e.before = keys[e.key]
			m.twice = append(m.twice, e)
		case isMerge:
			keys[e.key] = e.line
		default:
			keys[e.key] = e.line
			m.entries = append(m.entries, e)
		}
	}
	// What is written comes before what is merged, and the first of several merged before the
	// others.
	for _, from := range merges {
		m.twice, from.twice = append(m.twice, from.twice...), nil
		for _, e := range from.entries {
			switch r.merged++; {
			case r.merged == maxFileValues:
				r.fail(m.line, "merge keys repeat too much", fmt.Sprintf("at most %d values", maxFileValues), "more")
			case r.merged < maxFileValues && keys[e.key] == 0:
				keys[e.key] = e.line
				m.entries = append(m.entries, e)
			}
		}
	}
	return m
}

// key is a scalar, or the << of a merge.
func (r *reader) key(n ast.Node) (key *node, isMerge bool) {
	if complex, ok := n.(*ast.MappingKeyNode); ok {
		n = complex.Value
	}
	if _, ok := n.(*ast.MergeKeyNode); ok {
		return &node{kind: kindText, text: "<<", line: line(n)}, true
	}
	return r.read(n), false
}

// merge lists what << merges: a mapping, or a list of them.
func (r *reader) merge(value *node) []*node {
	from := []*node{value}
	if value.kind == kindList {
		from = value.items
	}
	for _, n := range from {
		if n.kind != kindMapping {
			r.fail(value.line, "cannot be merged", "an alias of a mapping, or a list of these: <<: *name", n.String())
			return nil
		}
	}
	return from
}
