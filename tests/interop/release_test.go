package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What scripts/release tags can be installed, as go install is told by the docs, without a
// workspace and without what a go.mod replaces here.
func TestReleaseCanBeInstalled(t *testing.T) {
	t.Parallel()

	clone, bin := filepath.Join(t.TempDir(), "clone"), t.TempDir()
	run := func(folder string, env []string, command ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Dir, cmd.Env = folder, append(os.Environ(), env...)
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", command, output)

		return string(output)
	}
	run(".", nil, "git", "clone", "-q", "../..", clone)
	name := []string{"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b.example",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b.example"}
	changelog, err := os.ReadFile(filepath.Join(clone, "CHANGELOG.md"))
	require.NoError(t, err)
	changelog = []byte(strings.Replace(string(changelog), "## [Unreleased]\n", "## [0.99.0]\n\n- Tried.\n", 1))
	require.NoError(t, os.WriteFile(filepath.Join(clone, "CHANGELOG.md"), changelog, 0o600))
	run(clone, name, "git", "commit", "-qam", "A section for 0.99.0")
	tagged := run(clone, name, "scripts/release", "tag", "v0.99.0")
	assert.Contains(t, tagged, "git push --atomic origin v0.99.0 cmd/amqpretry/v0.99.0 middleware/metrics/v0.99.0")

	// A cache of its own, as nothing of this version may stay; modules of others come from that of
	// this machine, if they are there.
	settings := strings.Fields(run(".", nil, "go", "env", "GOMODCACHE", "GOPROXY"))
	require.Len(t, settings, 2)
	run(bin, []string{"GOBIN=" + bin, "GOWORK=off", "GOFLAGS=-modcacherw", "GOSUMDB=off", "GOVCS=*:git",
		"GOPROXY=file://" + filepath.Join(settings[0], "cache", "download") + "," + settings[1],
		"GONOPROXY=github.com/amqpretry/*", "GOMODCACHE=" + filepath.Join(t.TempDir(), "modules"),
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url." + clone + ".insteadOf",
		"GIT_CONFIG_VALUE_0=https://github.com/amqpretry/watermill-retry"},
		"go", "install", "github.com/amqpretry/watermill-retry/cmd/amqpretry@v0.99.0")
	assert.Contains(t, run(bin, nil, filepath.Join(bin, "amqpretry"), "version"), "amqpretry v0.99.0, ")
}
