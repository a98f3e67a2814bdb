package interop

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Grafana's own schema knows each field of the dashboard, its panels and its queries, and misses
// none.
func TestDashboardIsGrafanas(t *testing.T) {
	t.Parallel()
	plugins.RegisterDefaultPlugins() // the schemas of panels and queries
	text, err := os.ReadFile(metricsDir + "dashboard.json")
	require.NoError(t, err)
	require.Empty(t, problemsOf(t, string(text)))

	for now, then := range map[string]string{ // the check itself
		`"graphMode": "none"`: `"graphMode": 1`, `"unit": "short"`: `"units": "short"`,
		`"wideLayout": true`: `"wide": true`, `"legendFormat": "median"`: `"legend": "median"`,
		`"lineWidth": 1`: `"width": 1`, `"w": 4`: `"w": 25`,
	} {
		assert.Contains(t, string(text), now)
		assert.NotEmpty(t, problemsOf(t, strings.Replace(string(text), now, then, 1)), then)
	}
}

// problemsOf returns the fields that the schema misses, refuses, or does not know.
func problemsOf(t *testing.T, text string) (problems []string) {
	t.Helper()
	var strict, d dashboard.Dashboard //nolint:staticcheck // the classic format, which every Grafana imports
	if err := strict.UnmarshalJSONStrict([]byte(text)); err != nil && err.Error() != "" {
		problems = append(problems, err.Error())
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return append(problems, err.Error())
	}
	if err := d.Validate(); err != nil {
		problems = append(problems, err.Error())
	}
	var has, kept any
	again, err := json.Marshal(d)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(text), &has))
	require.NoError(t, json.Unmarshal(again, &kept))

	return append(problems, lost("", has, kept)...)
}

// lost returns the fields of a value that are not in another one.
func lost(path string, has, kept any) (fields []string) {
	switch has := has.(type) {
	case map[string]any:
		kept, _ := kept.(map[string]any)
		for key, value := range has {
			fields = append(fields, lost(path+"."+key, value, kept[key])...)
		}
	case []any:
		kept, _ := kept.([]any)
		for i, value := range has {
			var other any
			if i < len(kept) {
				other = kept[i]
			}
			fields = append(fields, lost(fmt.Sprintf("%s[%d]", path, i), value, other)...)
		}
	default:
		if has != nil && has != kept {
			fields = append(fields, fmt.Sprintf("%s: %v became %v", path, has, kept))
		}
	}

	return fields
}
