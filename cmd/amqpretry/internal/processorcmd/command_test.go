package processorcmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// Each mistake ends the command before it connects, and its error names the valid input.
func TestUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	invalid := file("invalid.yaml", "default: {delays: [0ms]}")
	redelivery := file("redelivery.yaml", "topics: {orders: {strategy: redelivery, delays: [1s]}}")
	off := file("off.yaml", "topics: {orders: {mode: off}}")
	const queues, api = "--queues=orders.failed=orders", "--management-url=http://h:1"
	for name, test := range map[string]struct {
		args []string
		want string
		code int
	}{
		"nothing":       {nil, "wanted --queues FAILED=MAIN, or --match", cli.ExitUsage},
		"no pair":       {[]string{"--queues", "orders"}, `"orders": wanted FAILED=MAIN`, cli.ExitUsage},
		"empty name":    {[]string{"--queues", "=orders"}, `wanted FAILED=MAIN`, cli.ExitUsage},
		"an address":    {[]string{"--queues", "amqp://u:s3cret@h=a"}, "found an address", cli.ExitUsage},
		"an argument":   {[]string{"orders"}, "unknown command", cli.ExitUsage},
		"no API":        {[]string{"--match", "*.failed"}, "--match needs the management API", cli.ExitUsage},
		"star missing":  {[]string{"--match", "orders.failed", api}, "exactly one *", cli.ExitUsage},
		"only a star":   {[]string{"--match", "*", api}, "matches all queues", cli.ExitUsage},
		"itself":        {[]string{"--queues", "orders=orders"}, "its own failed queue", cli.ExitUsage},
		"own dlq":       {[]string{"--queues", "orders.dlq=orders"}, "the dead-letter queue of", cli.ExitUsage},
		"one of two":    {[]string{queues, "--queues=orders.failed=amq.x"}, "Config.Queues[1]", cli.ExitUsage},
		"log level":     {[]string{queues, "--log-level", "loud"}, "wanted debug, info, warn or error", cli.ExitUsage},
		"prefetch":      {[]string{queues, "--prefetch", "-1"}, "1..65535", cli.ExitUsage},
		"poll":          {[]string{queues, "--poll", "-1s"}, "negative", cli.ExitUsage},
		"policies":      {[]string{queues, "--policies", invalid}, "invalid.yaml:1", cli.ExitUsage},
		"strategy":      {[]string{queues, "--policies", redelivery}, "strategy redelivery", cli.ExitUsage},
		"off":           {[]string{queues, "--policies", off}, "mode off", cli.ExitUsage},
		"listen":        {[]string{queues, "--listen", "nowhere:-1"}, "--listen", cli.ExitFailed},
		"bad URI":       {[]string{queues, "--uri", "amqp//u:s3cret@h"}, "not an AMQP URI", cli.ExitUsage},
		"bad main name": {[]string{"--queues", "f=amq.x"}, "broker's own", cli.ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs strings.Builder
			s := cli.NewSession()
			s.Out, s.Err = &out, &errs
			s.Getenv = func(name string) string {
				if name == cli.EnvURI {
					return "amqp://localhost:1"
				}
				return ""
			}
			args := append([]string{"processor"}, test.args...)
			code := cli.Run(t.Context(), s, args, Command)
			assert.Equal(t, test.code, code, errs.String())
			assert.Contains(t, errs.String(), test.want)
			assert.NotContains(t, errs.String(), "s3cret")
			assert.Empty(t, out.String())
		})
	}
}
