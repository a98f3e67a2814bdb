package metrics_test

import (
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/retry"
)

// documented is a series as the documentation has it.
type documented struct {
	labels  []string
	kind    string
	meaning string
}

// TestDocumentation compares what is registered with the package doc and with
// docs/reference/metrics.md.
func TestDocumentation(t *testing.T) {
	t.Parallel()

	registered := map[string]documented{}
	_, registry := everything(t)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		var labels []string
		for _, l := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		registered[family.GetName()] = documented{
			labels, strings.ToLower(dto.MetricType_name[int32(family.GetType())]), plain(family.GetHelp()),
		}
	}

	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	assert.Equal(t, registered, table(file.Doc.Text(), `(?m)^\t(amqpretry_\w+)\{(.*?)\} +(\w+) +(.*)$`), "package doc")

	text, err := os.ReadFile("../../docs/reference/metrics.md")
	require.NoError(t, err)
	assert.Equal(t, registered, table(string(text), "(?m)^\\| `(amqpretry_\\w+)` \\| (.*?) \\| (\\w+) \\| (.*?) \\|$"),
		"docs/reference/metrics.md")
}

func table(text, line string) map[string]documented {
	found := map[string]documented{}
	for _, m := range regexp.MustCompile(line).FindAllStringSubmatch(text, -1) {
		labels := regexp.MustCompile(`\w+`).FindAllString(m[2], -1)
		slices.Sort(labels)
		found[m[1]] = documented{labels, m[3], plain(m[4])}
	}

	return found
}

func plain(meaning string) string {
	meaning = strings.TrimSuffix(meaning, ".")
	return strings.ToLower(meaning[:1]) + meaning[1:]
}

// TestClosedLists compares the documented values of labels with what events can have.
func TestClosedLists(t *testing.T) {
	t.Parallel()

	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	_, values, found := strings.Cut(file.Doc.Text(), "# Values of labels")
	require.True(t, found)

	_, registry := everything(t)
	families, err := registry.Gather()
	require.NoError(t, err)
	var reasons []string
	for _, label := range []string{"outcome", "result", "reason", "connection"} {
		entry := regexp.MustCompile(`(?ms)^\t` + label + `\s+(.*?)(?:\n\t\w|\n\n)`).FindStringSubmatch(values)
		require.NotNil(t, entry, label)
		for _, family := range families {
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() != label {
						continue
					}
					assert.Regexp(t, `\b`+l.GetValue()+`\b`, entry[1], "%s of %s", label, family.GetName())
					if label == "reason" && family.GetName() == "amqpretry_dead_letters_total" {
						reasons = append(reasons, l.GetValue())
					}
				}
			}
		}
	}

	var all []string
	for _, r := range retry.Reasons() {
		all = append(all, string(r))
	}
	assert.ElementsMatch(t, all, reasons, "all reasons of the project begin at 0")
}
