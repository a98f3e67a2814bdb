package doctor

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each check has a text for where it finds nothing, and rules; the file has no others.
func TestRulesOfChecks(t *testing.T) {
	withRules := map[string]bool{}
	for name, r := range rules {
		withRules[r.Check] = true
		if r.Severity != "" {
			assert.Contains(t, severities, r.Severity, name)
			assert.NotEmpty(t, r.Found, name)
			// The others of this check are what keeps a main queue from taking messages.
			assert.True(t, r.Means != "" || r.Check == "landing" && name != "landing.due", name)
		}
	}
	for _, c := range checks {
		assert.NotEmpty(t, fine[c.name], c.name)
		assert.True(t, withRules[c.name], c.name)
		delete(withRules, c.name)
	}
	assert.Empty(t, withRules)
	assert.Len(t, fine, len(checks))
}

// A name in the code that no rule has would be an empty finding. Names that are put together begin
// like rules.
func TestRulesOfTheCode(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	var code strings.Builder
	for _, file := range files {
		if strings.HasSuffix(file.Name(), ".go") && !strings.HasSuffix(file.Name(), "_test.go") {
			text, err := os.ReadFile(file.Name())
			require.NoError(t, err)
			code.Write(text)
		}
	}
	var checkNames []string
	for _, c := range checks {
		checkNames = append(checkNames, c.name)
	}
	name := regexp.MustCompile(`"((?:` + strings.Join(checkNames, "|") + `)\.[\w.-]*)"`)
	var used []string
	for _, m := range name.FindAllStringSubmatch(code.String(), -1) {
		used = append(used, m[1])
		if _, whole := rules[m[1]]; !whole {
			assert.True(t, strings.HasSuffix(m[1], "."), "there is no rule %s", m[1])
		}
	}
	for rule := range rules {
		assert.True(t, rule == "" || slices.ContainsFunc(used, func(name string) bool {
			return name == rule || strings.HasSuffix(name, ".") && strings.HasPrefix(rule, name)
		}), "nothing uses the rule %s", rule)
	}
}

// The words that a rule fills in are those that the code gives.
func TestWordsOfRules(t *testing.T) {
	f := healthy(t)
	f.VHost = "v"
	rules["test.words"] = Finding{Found: `{n} of {"queue}: {version}`, Fix: "{ctl list_queues} {'queue} {rabbit, [{x, 1}]}"}
	defer delete(rules, "test.words")
	said := f.says("test.words", "n", 3, "queue", "a{n}'b")
	assert.Equal(t, `3 of "a{n}'b": 4.0.5`, said.Found)
	assert.Equal(t, `rabbitmqctl list_queues -p '/' 'a{n}'\''b' {rabbit, [{x, 1}]}`, said.Fix)
}

// The page has all rules. UPDATE=yes writes them.
func TestPageOfRules(t *testing.T) {
	const page = "../../../../docs/reference/command-line/doctor-rules.md"
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	before, _, found := strings.Cut(string(text), "\n## ")
	require.True(t, found)
	var b strings.Builder
	b.WriteString(before)
	for _, name := range order {
		if check, is := strings.CutPrefix(name, "["); is {
			check = strings.TrimSuffix(check, "]")
			fmt.Fprintf(&b, "\n## %s\n\nWithout findings: %s.\n\n", check, code(fine[check]))
			b.WriteString("| rule | severity | found | means | fix |\n|---|---|---|---|---|\n")
			continue
		}
		if r := rules[name]; r.Severity != "" {
			_, short, _ := strings.Cut(name, ".")
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", short, r.Severity, code(r.Found),
				code(cmp.Or(r.meansOfAll, r.Means)), lines(r.Fix))
		}
	}
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(page, []byte(b.String()), 0o600))
		return
	}
	assert.Equal(t, b.String(), string(text),
		"%s: UPDATE=yes go test ./cmd/amqpretry/internal/doctor -run TestPageOfRules writes it", page)
}

// code is a text for a cell of a table, with its words in upper case.
func code(text string) string {
	text = word.ReplaceAllStringFunc(text, func(found string) string {
		m := word.FindStringSubmatch(found)
		if m[1] != "" {
			return "rabbitmqctl " + m[1] + " -p VHOST"
		}
		return strings.ToUpper(m[3])
	})
	return strings.NewReplacer("|", "\\|", "<", "&lt;", "*", "\\*").Replace(text)
}

// lines are the commands of a fix, without what is to be read.
func lines(text string) string {
	var all []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#   "), !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "{"),
			strings.HasPrefix(line, "{ctl"):
			all = append(all, "`"+code(strings.TrimPrefix(line, "#   "))+"`")
		case strings.HasPrefix(line, "# "):
			all = append(all, code(strings.TrimPrefix(line, "# ")))
		default:
			all = append(all, "a command")
		}
	}
	return strings.Join(all, "<br>")
}
