package arrows

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// folderOf is the folder to which a package belongs: one at the top, or one of internal.
func folderOf(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, ourModule+"/"), "/")
	if parts[0] == "internal" && len(parts) > 1 {
		return parts[0] + "/" + parts[1]
	}

	return parts[0]
}

// Imports between folders go one way: no folder needs another that needs it.
func TestNoCyclesBetweenFolders(t *testing.T) {
	t.Parallel()

	packages := listed(t, "-f", `{{.ImportPath}} {{join .Imports " "}}`,
		"./config/...", "./retry/...", "./middleware/...", "./middleware/metrics", "./middleware/protect/...",
		"./middleware/tracing/...", "./amqpretry/...", "./internal/...", "./cmd/amqpretry/...")
	imports := map[string]map[string]bool{}
	for line := range strings.Lines(packages) {
		packages := strings.Fields(line)
		from := folderOf(packages[0])
		if strings.HasPrefix(from, "internal/testkit") || strings.HasPrefix(from, "internal/versions") { // for tests
			continue
		}
		for _, imported := range packages[1:] {
			if to := folderOf(imported); strings.HasPrefix(imported, ourModule+"/") && to != from {
				if imports[from] == nil {
					imports[from] = map[string]bool{}
				}
				imports[from][to] = true
			}
		}
	}
	require.Contains(t, imports["cmd"], "amqpretry", "the check must not run empty")
	for folder := range imports {
		assert.Empty(t, wayBack(imports, folder, folder, map[string]bool{}), "a cycle of folders from %s", folder)
	}
}

// wayBack is a way from one folder to another; empty if there is none.
func wayBack(imports map[string]map[string]bool, from, to string, seen map[string]bool) []string {
	for _, next := range slices.Sorted(maps.Keys(imports[from])) {
		if next == to {
			return []string{from, to}
		}
		if seen[next] {
			continue
		}
		seen[next] = true
		if way := wayBack(imports, next, to, seen); way != nil {
			return append([]string{from}, way...)
		}
	}

	return nil
}
