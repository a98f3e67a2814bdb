//go:build foreign

package foreign

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The versions that are installed.
const (
	pika    = "1.3.2"
	amqplib = "0.10.9"
)

// client is a consumer in a language, as it is started.
type client struct {
	language string
	command  []string
	env      []string
}

// python finds or installs pika: with pip into a folder, else from Debian's package, which is not
// installed but unpacked.
func python(t *testing.T) client {
	t.Helper()
	script, err := filepath.Abs("testdata/consumer.py")
	require.NoError(t, err)
	dir := t.TempDir()
	venv := filepath.Join(dir, "venv", "bin", "python3")

	var tried []error
	for _, way := range []struct {
		interpreter, path string
		install           [][]string
	}{
		{venv, "", [][]string{{"python3", "-m", "venv", filepath.Join(dir, "venv")},
			{venv, "-m", "pip", "install", "-q", "--retries", "1", "pika==" + pika}}},
		{"python3", filepath.Join(dir, "debian", "usr", "lib", "python3", "dist-packages"), [][]string{
			{"apt-get", "download", "-q", "python3-pika"},
			{"sh", "-c", "dpkg -x python3-pika_*.deb debian"}}},
	} {
		env := append(os.Environ(), "PYTHONPATH="+way.path)
		err := run(dir, nil, way.install...)
		if err == nil {
			err = run(dir, env, []string{way.interpreter, "-c", "import pika"})
		}
		if err == nil {
			return client{"Python", []string{way.interpreter, script}, env}
		}
		tried = append(tried, err)
	}
	t.Fatalf("cannot install pika for the consumer in Python: make foreign needs python3 with pip and an index of "+
		"packages, or apt-get:\n%v", errors.Join(tried...))

	return client{}
}

// javascript installs amqplib into a folder.
func javascript(t *testing.T) client {
	t.Helper()
	dir := t.TempDir()
	script, err := os.ReadFile("testdata/consumer.js")
	require.NoError(t, err)
	path := filepath.Join(dir, "consumer.js") // it looks for modules beside itself
	require.NoError(t, os.WriteFile(path, script, 0o600))
	install := []string{"npm", "install", "--no-audit", "--no-fund", "--prefix", dir, "amqplib@" + amqplib}
	if err := run(dir, nil, install, []string{"node", "--version"}); err != nil {
		t.Fatalf("cannot install amqplib for the consumer in JavaScript: make foreign needs node and npm, and a "+
			"registry of packages:\n%v", err)
	}

	return client{"JavaScript", []string{"node", path}, os.Environ()}
}

func run(dir string, env []string, commands ...[]string) error {
	for _, command := range commands {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir, cmd.Env = dir, env
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command[0], err, out)
		}
	}

	return nil
}
