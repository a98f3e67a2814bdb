package arrows

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A user of the retrier compiles only modules that the top of docs/project/dependencies.md names.
// The linter checks what our packages import. This test checks what the modules of others bring.
func TestUsersCompileNothingElse(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile(root + "/docs/project/dependencies.md")
	require.NoError(t, err)
	top, _, found := strings.Cut(string(page), "\nFor who uses ")
	require.True(t, found)
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f",
		`{{with .Module}}{{.Path}}{{end}}{{if eq .ImportPath "testing"}}testing{{end}}`,
		"./amqpretry/amqpv2", "./amqpretry/amqpv3", "./amqpretry/processor")
	list.Dir, list.Stderr = root, os.Stderr
	output, err := list.Output()
	require.NoError(t, err)
	modules := strings.Fields(string(output))
	assert.Contains(t, modules, "github.com/rabbitmq/amqp091-go", "the check must not run empty")
	for _, module := range modules {
		assert.Contains(t, top+"`amqpretry/watermill-retry`", "`"+strings.TrimPrefix(module, "github.com/")+"`")
	}
}

// A service that retries needs no HTTP: only the processor and the tools ask the management API.
func TestServicesCompileNoHTTP(t *testing.T) {
	t.Parallel()

	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "./amqpretry/amqpv2", "./amqpretry/amqpv3")
	list.Dir, list.Stderr = root, os.Stderr
	output, err := list.Output()
	require.NoError(t, err)
	packages := strings.Fields(string(output))
	assert.Contains(t, packages, "crypto/tls", "the check must not run empty")
	assert.NotContains(t, packages, "net/http")
}
