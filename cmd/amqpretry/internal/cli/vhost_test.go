package cli

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/connection"
)

// The flag holds for AMQP and for the management API alike: a purge in another virtual host than
// was asked for cannot be undone by reading.
func TestVHost(t *testing.T) {
	for name, test := range map[string]struct {
		environ, flag, vhost string
		want                 string
	}{
		"neither":            {"amqp://u:p@h", "", "", "/"},
		"of the URI":         {"amqp://u:p@h/v%2F1", "", "", "v/1"},
		"of the flag":        {"amqp://u:p@h", "", "staging", "staging"},
		"the flag wins":      {"amqp://u:p@h/production", "", "staging", "staging"},
		"the usual one":      {"amqp://u:p@h/production", "", "/", "/"},
		"slash":              {"amqp://u:p@h/", "", "a/b", "a/b"},
		"all that is odd":    {"amqp://u:p@h/x", "", "a b%2F?#é@:&=+", "a b%2F?#é@:&=+"},
		"no host":            {"amqp:///x", "", "y", "y"},
		"settings":           {"amqp://u:p@h/x?heartbeat=5", "", "y", "y"},
		"both flags":         {"", "amqp://u:p@h/", "staging", "staging"},
		"both flags, alike":  {"", "amqp://u:p@h/staging", "staging", "staging"},
		"flag and no path":   {"amqp://u:p@g/other", "amqp://u:p@h", "staging", "staging"},
		"password with /":    {"amqp://u:p%2Fq@h/x", "", "y", "y"},
		"both are the usual": {"", "amqp://u:p@h/%2F", "/", "/"},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"do", "--management-url", "http://m"}
			for flag, value := range map[string]string{"--uri": test.flag, "--vhost": test.vhost} {
				if value != "" {
					args = append(args, flag, value)
				}
			}
			w := newWorld(map[string]string{EnvURI: test.environ})
			code := w.run(t, command(func(s *Session, _ *cobra.Command, _ []string) error {
				uri, err := s.URI()
				require.NoError(t, err)
				got, err := connection.ParseURI(uri)
				require.NoError(t, err)
				assert.Equal(t, test.want, got.Vhost, "AMQP: %s", uri)

				given, err := connection.ParseURI(test.flag + map[bool]string{true: test.environ}[test.flag == ""])
				require.NoError(t, err)
				given.Vhost = got.Vhost
				assert.Equal(t, given, got, "nothing else has changed")

				m, _, err := s.Management()
				require.NoError(t, err)
				assert.Equal(t, test.want, m.VHost, "management API")

				return nil
			}), args...)
			assert.Equal(t, ExitOK, code, w.err.String())
		})
	}
}

// Others than the client of AMQP read a slash in the name as one that is escaped only.
func TestVHostIsEscaped(t *testing.T) {
	uri, err := withVHost("amqp://u:p%2Fq@h:5673/x?heartbeat=5", "a/b c")
	require.NoError(t, err)
	assert.Equal(t, "amqp://u:p%2Fq@h:5673/a%2Fb%20c?heartbeat=5", uri)
	uri, err = withVHost("amqp://h", "/")
	require.NoError(t, err)
	assert.Equal(t, "amqp://h/%2F", uri)
}

func TestTwoVHosts(t *testing.T) {
	for _, uri := range []string{"amqp://u:" + secret + "@h/production", "amqp://u:" + secret + "@h/%2F"} {
		w := newWorld(map[string]string{EnvURI: "amqp://h"})
		code := w.run(t, command(func(s *Session, cmd *cobra.Command, _ []string) error {
			_, err := s.Dial(cmd.Context())
			return err
		}), "do", "--uri", uri, "--vhost", "staging")
		assert.Equal(t, ExitUsage, code)
		assert.Regexp(t, `two virtual hosts: --uri has "(production|/)" and --vhost "staging"`, w.err.String())
		assert.NotContains(t, w.err.String(), secret)
	}
}

// An empty text is most often a variable that is not set.
func TestEmptyTexts(t *testing.T) {
	for _, flag := range []string{"--uri", "--vhost"} {
		w := newWorld(map[string]string{EnvURI: "amqp://h"})
		assert.Equal(t, ExitUsage, w.run(t, command(nothing), "do", flag, ""))
		assert.Contains(t, w.err.String(), flag)
		assert.Contains(t, w.err.String(), "must not be empty; is a variable not set?")
	}
}
