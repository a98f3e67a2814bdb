package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
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

// node is a value of a file, whatever its syntax: aliases are followed, merge keys are merged. An
// alias is the same node in several places.
type node struct {
	kind    kind
	text    string // of a scalar, as it is written
	line    int
	items   []*node
	entries []entry // each key once
}

type entry struct {
	key   string
	line  int
	value *node
}

// Bounds of a file. A real one is far below. The work of the parser grows with the square of the
// entries of a mapping.
const (
	maxFileBytes  = 256 << 10
	maxFileDepth  = 64
	maxFileValues = 100_000 // with those that aliases and merge keys repeat
)

// The kinds of scalars without quotes, by the rules of YAML 1.2: "off" is text.
var (
	numberRegexp  = regexp.MustCompile(`^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`)
	booleanRegexp = regexp.MustCompile(`^(true|True|TRUE|false|False|FALSE)$`)
	nullRegexp    = regexp.MustCompile(`^(null|Null|NULL|~|)$`)
)

// String describes the node for an error.
func (n *node) String() string {
	switch n.kind {
	case kindText:
		return strconv.Quote(n.text)
	case kindNumber, kindBoolean:
		return n.text + " (" + string(n.kind) + ")"
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

// read reads YAML or JSON, which is YAML too. The root is nil for an empty text, and where the text
// cannot be read.
func (d *decoder) read(data []byte) (root *node) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	data = bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
	if json.Valid(data) { // its tabs are all between values: the parser takes them in some places only
		data = bytes.ReplaceAll(data, []byte("\t"), []byte(" "))
	}
	if !d.checkText(data) {
		return nil
	}
	for _, doc := range d.parse(data) {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.DirectiveType:
		case root != nil:
			d.fail("", lineOf(doc.Body), secondDocument, oneDocument, "")
		default:
			root = d.node(doc.Body, "")
		}
	}
	return root
}

const (
	secondDocument = "a second document"
	oneDocument    = "one document, without another below a line of ---"
)

// Lines that the parser must not get: it drops a tab in text without quotes, and what is above the
// second header of a document, and it would need a stack for what is nested deep.
var (
	controlRegexp = regexp.MustCompile(`[\x00-\x08\x0b-\x1f]`)
	tabRegexp     = regexp.MustCompile(`^[^#"']*[^\s:,\[{#"'-]\t+[^\s#]`)
	indentRegexp  = regexp.MustCompile(fmt.Sprintf(`^[ ?-]{%d}`, maxFileDepth))
)

// checkText is a check in front of the parser. Brackets count also where they are only text.
func (d *decoder) checkText(data []byte) bool {
	if len(data) > maxFileBytes {
		d.fail("", 0, "too long", fmt.Sprintf("at most %d bytes", maxFileBytes), "more")
		return false
	}
	headers, open, deepest := 0, 0, 0
	for i, line := range bytes.Split(data, []byte("\n")) {
		for _, char := range line {
			switch char {
			case '[', '{':
				open++
				deepest = max(deepest, open)
			case ']', '}':
				open = max(0, open-1)
			}
		}
		if bytes.HasPrefix(line, []byte("---")) {
			headers++
		}
		at, errs := i+1, len(d.errs)
		switch control := controlRegexp.Find(line); {
		case !utf8.Valid(line):
			d.fail("", at, "no text", "UTF-8", strconv.Quote(string(line)))
		case control != nil:
			d.fail("", at, "no text", "without control characters", strconv.Quote(string(control)))
		case headers > 1:
			d.fail("", at, secondDocument, oneDocument, "")
		case tabRegexp.Match(line):
			d.fail("", at, "a tab inside of a name or value", "a space, or \\t in double quotes", "")
		case deepest > maxFileDepth || indentRegexp.Match(line):
			d.fail("", at, "nested too deep", fmt.Sprintf("at most %d open brackets and columns of indentation",
				maxFileDepth), "more")
		}
		if len(d.errs) > errs {
			return false
		}
	}
	return true
}

// parse never panics, whatever the parser does.
func (d *decoder) parse(data []byte) []*ast.DocumentNode {
	const notYAML = "neither YAML nor JSON: "
	defer func() {
		if r := recover(); r != nil {
			d.fail("", 0, fmt.Sprintf(notYAML+"the parser failed: %v", r), "", "")
		}
	}()
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err == nil {
		return file.Docs
	}
	problem, wanted, line := err.Error(), "", 0
	var at interface {
		GetMessage() string
		GetToken() *token.Token
	}
	if errors.As(err, &at) {
		problem = at.GetMessage()
		if t := at.GetToken(); t != nil && t.Position != nil {
			line = t.Position.Line
			if bytes.Contains(bytes.Split(data, []byte("\n"))[line-1], []byte("*")) {
				wanted = "in quotes where text begins with *"
			}
		}
	}
	d.fail("", line, notYAML+problem, wanted, "")
	return nil
}

// lineOf a node of the parser, as far as it has one.
func lineOf(n ast.Node) int {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

// node makes a node of one of the parser.
func (d *decoder) node(n ast.Node, path string) *node {
	made := &node{kind: kindNull, line: lineOf(n)}
	switch n := n.(type) {
	case nil, *ast.NullNode:
	case *ast.MappingNode:
		d.mapping(made, n.Values, path)
	case *ast.MappingValueNode:
		d.mapping(made, []*ast.MappingValueNode{n}, path)
	case *ast.SequenceNode:
		made.kind = kindList
		for i, item := range n.Values {
			made.items = append(made.items, d.node(item, inList(path, i)))
		}
	case *ast.AnchorNode:
		made = d.node(n.Value, path)
		d.anchors[n.Name.GetToken().Value] = made
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		if value, ok := d.anchors[name]; ok {
			return value
		}
		d.fail(path, made.line, "unknown alias", "in quotes if it is text; an alias needs its anchor above, &"+
			shortened(name), "*"+name)
	case *ast.TagNode:
		d.fail(path, made.line, "a tag", "left out: what a value is, the field says", n.Start.Value)
	case *ast.LiteralNode:
		made.kind, made.text = kindText, n.Value.Value
	case ast.ScalarNode:
		d.scalarNode(made, n)
	default:
		d.fail(path, made.line, "not understood", "a scalar, a list or a mapping", n.Type().YAMLName())
	}
	return made
}

// scalarNode sets what a scalar is: without quotes its text says it.
func (d *decoder) scalarNode(made *node, n ast.ScalarNode) {
	made.kind, made.text = kindText, n.GetToken().Value
	text, isText := n.(*ast.StringNode)
	if isText {
		made.text = text.Value
	}
	switch t := n.GetToken().Type; {
	case isText && (t == token.SingleQuoteType || t == token.DoubleQuoteType):
	case nullRegexp.MatchString(made.text):
		made.kind = kindNull
	case booleanRegexp.MatchString(made.text):
		made.kind = kindBoolean
	case numberRegexp.MatchString(made.text):
		made.kind = kindNumber
	}
}

func (d *decoder) mapping(m *node, values []*ast.MappingValueNode, path string) {
	m.kind = kindMapping
	keys := map[string]int{} // with their lines
	var merged []*node
	for _, v := range values {
		key, isMerge := d.key(v.Key, path)
		inside := inMapping(path, key.text)
		value := d.node(v.Value, inside)
		switch {
		case key.kind == kindNull || key.kind == kindList || key.kind == kindMapping:
			d.fail(path, key.line, "cannot be a key", "text, in quotes if need be", key.String())
		case keys[key.text] != 0:
			d.fail(inside, key.line, "duplicate key", fmt.Sprintf("given once; it is on line %d already",
				keys[key.text]), "")
		case isMerge:
			merged = append(merged, d.merge(value, inside)...)
		default:
			m.entries = append(m.entries, entry{key: key.text, line: key.line, value: value})
		}
		keys[key.text] = key.line
	}
	// What is written comes before what is merged, and the first of several merged before the
	// others.
	for _, from := range merged {
		for _, e := range from.entries {
			if d.spend(m.line) && keys[e.key] == 0 {
				keys[e.key] = e.line
				m.entries = append(m.entries, e)
			}
		}
	}
}

// key is a scalar, or the << of a merge.
func (d *decoder) key(n ast.Node, path string) (key *node, isMerge bool) {
	if complex, ok := n.(*ast.MappingKeyNode); ok {
		n = complex.Value
	}
	if _, ok := n.(*ast.MergeKeyNode); ok {
		return &node{kind: kindText, text: "<<", line: lineOf(n)}, true
	}
	return d.node(n, path), false
}

// merge lists what << merges: a mapping, or a list of them.
func (d *decoder) merge(value *node, path string) []*node {
	from := []*node{value}
	if value.kind == kindList {
		from = value.items
	}
	for _, n := range from {
		if n.kind != kindMapping {
			d.fail(path, value.line, "cannot be merged", "an alias of a mapping, or a list of these: <<: *name",
				n.String())
			return nil
		}
	}
	return from
}
