package shell_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/shell"
)

func TestFilesOfQueues(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "main-queue-shop.orders_2.jsonl", shell.File("main-queue", "shop.orders_2"))
	known := map[string]string{}
	folder := t.TempDir()
	for _, queue := range []string{"orders", "Orders", "ORDERS", "a b", "a_b", "a/b", "a'b", "a\nb", "$(rm -rf ~)",
		"日本", "日木", "..", "../orders", "-x", "~", "*", strings.Repeat("q", 255), strings.Repeat("q", 254),
		strings.Repeat("é", 127),
		strings.Repeat("Q", 255), "A_b+0123456789abcdef", ""} {
		file := shell.File("main-queue", queue)
		lower := strings.ToLower(file)
		assert.NotContains(t, known, lower, "%q and %q", queue, known[lower])
		known[lower] = queue
		cmd := exec.Command("sh", "-c", "echo "+file+" > "+file)
		cmd.Dir = folder
		require.NoError(t, cmd.Run(), queue)
		written, err := os.ReadFile(filepath.Join(folder, file))
		require.NoError(t, err, queue)
		assert.Equal(t, file+"\n", string(written))
	}
}
