// Package alertrules reads the alert rules of package metrics, and fills in their templates as
// Prometheus does.
package alertrules

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
)

// Rule is an alert of a rule file.
type Rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// Read returns the rules of all groups of a file.
func Read(t testing.TB, path string) []Rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []Rule
		}
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalWithOptions(text, &file, yaml.Strict()))
	var rules []Rule
	for _, group := range file.Groups {
		rules = append(rules, group.Rules...)
	}
	require.NotEmpty(t, rules)

	return rules
}

// prelude is what Prometheus puts before each template.
const prelude = "{{$labels := .Labels}}{{$value := .Value}}"

// Render returns an annotation of an alert with these labels. Value stands for the value of the
// alert.
func (r Rule) Render(t testing.TB, annotation string, labels map[string]string, value string) string {
	t.Helper()
	functions := template.FuncMap{
		"printf":             func(_, value string) string { return value },
		"humanizePercentage": func(value string) string { return value },
		"reReplaceAll": func(pattern, with, text string) string {
			return regexp.MustCompile(pattern).ReplaceAllString(text, with)
		},
	}
	parsed, err := template.New(r.Alert).Option("missingkey=zero").Funcs(functions).
		Parse(prelude + r.Annotations[annotation])
	require.NoError(t, err, r.Alert)
	var out strings.Builder
	require.NoError(t, parsed.Execute(&out, map[string]any{"Labels": labels, "Value": value}), r.Alert)

	return out.String()
}
