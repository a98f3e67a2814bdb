package chaos

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// overlayClock makes a standard library whose wall clock can be stepped, as the host's cannot be
// without disturbing everybody on it. What is measured by the monotonic clock stays, as it does
// when a clock is set.
func overlayClock(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	require.NoError(t, err)
	original := filepath.Join(strings.TrimSpace(string(out)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	require.NoError(t, err)

	const now = "func Now() Time {"
	require.Equal(t, 1, strings.Count(string(source), now), "time.Now of this version of Go is written differently")
	changed := strings.Replace(string(source), now, `// SteppedBy is by how many nanoseconds the wall clock is off.
var SteppedBy int64

func Now() Time {
	t := unsteppedNow()
	stepped := t.Round(0).Add(Duration(SteppedBy))
	stepped.setMono(t.mono())
	return stepped
}

func unsteppedNow() Time {`, 1)

	folder := t.TempDir()
	stepping := filepath.Join(folder, "time.go")
	require.NoError(t, os.WriteFile(stepping, []byte(changed), 0o600))
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: stepping}})
	require.NoError(t, err)
	path := filepath.Join(folder, "overlay.json")
	require.NoError(t, os.WriteFile(path, overlay, 0o600))

	return path
}
