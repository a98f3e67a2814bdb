package cli

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Most of what encoding/json leaves as it is a terminal shows; some it obeys.
func TestJSONDoesNothingToATerminal(t *testing.T) {
	const evil = "<a>\u009b31m\u202e\x7f\n\U000e0001ü\U0001f600"
	for name, print := range map[string]func(*Session) error{
		"indented": func(s *Session) error { return s.PrintJSON(map[string]string{evil: evil}) },
		"a line":   func(s *Session) error { return s.PrintJSONLine(map[string]string{evil: evil}) },
		"no UTF-8": func(s *Session) error {
			return s.PrintJSONLine(json.RawMessage("{\"" + `<a>\u009b31m` + "\u202e\x7f\xff\"" + `:""}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, print(&Session{Out: &out}))
			for _, unsafe := range []string{"\u009b", "\u202e", "\x7f", "\U000e0001", "\xff"} {
				assert.NotContains(t, out.String(), unsafe)
			}
			assert.Contains(t, out.String(), `<a>\u009b31m\u202e\u007f`)
			assert.True(t, json.Valid(out.Bytes()))
			if name != "no UTF-8" {
				assert.Contains(t, out.String(), `\n\udb40\udc01ü😀`)
				var back map[string]string
				require.NoError(t, json.Unmarshal(out.Bytes(), &back))
				assert.Equal(t, map[string]string{evil: evil}, back, "for programs it is the same")
			}
		})
	}
}
