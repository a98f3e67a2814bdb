// Package commandtest builds the command for tests, and runs its console as a process.
package commandtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Build builds the command, named amqpretry, into a folder and returns its path.
func Build(t testing.TB, folder string) string {
	t.Helper()
	path, err := build(folder)
	require.NoError(t, err)

	return path
}

func build(folder string) (string, error) {
	path := filepath.Join(folder, "amqpretry")
	out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", path,
		"github.com/amqpretry/watermill-retry/cmd/amqpretry").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot build the command: %w\n%s", err, out)
	}

	return path, nil
}

// shared builds the command that all tests of a package share, once.
var shared func() (path string, err error)

// Main is the TestMain of packages whose tests use Path.
func Main(m *testing.M) {
	os.Exit(func() int {
		folder, err := os.MkdirTemp("", "amqpretry-command-")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(folder) }()
		shared = sync.OnceValues(func() (string, error) { return build(folder) })

		return m.Run()
	}())
}

// Path returns the path of the command. The first call builds it. The package's TestMain must call
// Main.
func Path(t testing.TB) string {
	t.Helper()
	path, err := shared()
	require.NoError(t, err)

	return path
}
