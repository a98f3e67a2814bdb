package topologycmd

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

var update = flag.Bool("update", false, "write the golden files")

// done is a command line that has ended.
type done struct {
	code      int
	out, errs string
}

// execute runs a command line in an environment.
func execute(ctx context.Context, t *testing.T, environ map[string]string, args ...string) done {
	t.Helper()
	var stdout, stderr bytes.Buffer
	s := &cli.Session{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Now: time.Now,
		Getenv: func(key string) string { return environ[key] },
	}
	code := cli.Run(ctx, s, append([]string{"topology"}, args...), Command)

	return done{code, stdout.String(), stderr.String()}
}

// unread is the exit code of a command line whose output nobody reads.
func unread(t *testing.T, environ map[string]string, args ...string) int {
	t.Helper()
	reader, writer := io.Pipe()
	require.NoError(t, reader.Close())
	s := &cli.Session{
		In: strings.NewReader(""), Out: writer, Err: io.Discard, Now: time.Now,
		Getenv: func(key string) string { return environ[key] },
	}

	return cli.Run(t.Context(), s, append([]string{"topology"}, args...), Command)
}

// offline runs a command line without a broker.
func offline(t *testing.T, args ...string) done {
	t.Helper()
	return execute(t.Context(), t, nil, args...)
}

// report reads what --json has printed.
func (d done) report(t *testing.T) report {
	t.Helper()
	var r report
	require.NoError(t, json.Unmarshal([]byte(d.out), &r), d.out+d.errs)

	return r
}

func golden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	wanted, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(wanted), text)
}

// policyFile writes a policy file.
func policyFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policies.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))

	return file
}
