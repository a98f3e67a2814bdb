//go:build unix

package dlqcmd

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// asCommand in the environment makes this test binary the command.
const asCommand = "AMQPRETRY_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(cli.Run(context.Background(), cli.NewSession(), os.Args[1:], Command)) // as main does
	}
	os.Exit(m.Run())
}

// `amqpretry ... | head -n 1`: the browse ends, and gives back what it holds, in order. The command
// is a process, as a signal would end it.
func TestTheReaderGoes(t *testing.T) {
	t.Parallel()
	p := onBroker(t, brokertest.URI(t))
	const n = 2000 // more than pipes and buffers have room for
	p.fill(p.main, 0, n)
	p.Has(p.main+suffix, n)

	for _, args := range [][]string{
		{"list", p.main, "--limit", "0"}, {"list", p.main, "--limit", "0", "--json"}, {"export", p.main},
		{"stat", p.main}, {"show", p.main, "uuid-" + strconv.Itoa(n-1)}, {"replay", p.main},
	} {
		t.Run(args[0], func(t *testing.T) {
			reader, writer, err := os.Pipe()
			require.NoError(t, err)
			command := exec.CommandContext(t.Context(), os.Args[0], append([]string{"dlq"}, args...)...)
			command.Env = append(os.Environ(), asCommand+"=yes", cli.EnvURI+"="+p.URI, cli.EnvNoLimitPolicy+"=yes")
			command.Stdout = writer
			var errs strings.Builder
			command.Stderr = &errs
			require.NoError(t, command.Start())
			require.NoError(t, writer.Close())
			if args[0] == "list" || args[0] == "export" { // others are short: nobody has ever read them
				_, err = bufio.NewReaderSize(reader, 16).ReadString('\n')
				require.NoError(t, err)
			}
			require.NoError(t, reader.Close())
			assert.NoError(t, command.Wait(), errs.String())
			assert.NotContains(t, errs.String(), "amqpretry:")
		})
	}

	p.Has(p.main+suffix, n)
	for i, d := range p.bodies(p.main+suffix, n) {
		require.Equal(t, `{"n":`+strconv.Itoa(i)+`}`, string(d.Body), "in order")
	}
}
