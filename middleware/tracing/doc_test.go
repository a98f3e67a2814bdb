package tracing_test

import (
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every attribute that the code sets is in the package doc, and every one of ours there is set.
func TestDocumentation(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	require.NoError(t, err)
	_, section, found := strings.Cut(file.Doc.Text(), "# Attributes")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "# Error texts")

	own := regexp.MustCompile(`amqpretry\.[a-z_]+`)
	documented := own.FindAllString(section, -1)
	var set []string
	for _, name := range []string{"call.go", "event.go", "publisher.go"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		set = append(set, regexp.MustCompile(`"amqpretry\.[a-z_]+"`).FindAllString(string(text), -1)...)
	}
	for i := range set {
		set[i] = strings.Trim(set[i], `"`)
	}
	slices.Sort(documented)
	slices.Sort(set)
	assert.Equal(t, slices.Compact(documented), slices.Compact(set))
}
