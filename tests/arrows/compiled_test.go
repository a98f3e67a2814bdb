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

	top, _, found := strings.Cut(read(t, root+"/docs/project/dependencies.md"), "\nFor who uses ")
	require.True(t, found)
	modules := strings.Fields(listed(t, "-deps", "-f",
		`{{with .Module}}{{.Path}}{{end}}{{if eq .ImportPath "testing"}}testing{{end}}`,
		"./amqpretry/amqpv2", "./amqpretry/amqpv3", "./amqpretry/processor"))
	assert.Contains(t, modules, "github.com/rabbitmq/amqp091-go", "the check must not run empty")
	for _, module := range modules {
		assert.Contains(t, top+"`amqpretry/watermill-retry`", "`"+strings.TrimPrefix(module, "github.com/")+"`")
	}
}

// A service that retries needs no HTTP: only the processor and the tools ask the management API.
func TestServicesCompileNoHTTP(t *testing.T) {
	t.Parallel()

	packages := strings.Fields(listed(t, "-deps", "./amqpretry/amqpv2", "./amqpretry/amqpv3"))
	assert.Contains(t, packages, "crypto/tls", "the check must not run empty")
	assert.NotContains(t, packages, "net/http")
}

// listed is what go list writes.
func listed(t *testing.T, arguments ...string) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", append([]string{"list"}, arguments...)...)
	list.Dir, list.Stderr = root, os.Stderr
	output, err := list.Output()
	require.NoError(t, err)

	return string(output)
}
