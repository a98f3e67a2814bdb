// Package sizecmd is the command size: what retries take of a broker under a load, computed from
// measured costs, without a broker.
package sizecmd

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config"
)

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	l, topic, delays := load{}, "", []time.Duration(nil)
	cmd := &cobra.Command{
		Use:   "size",
		Short: "Compute the size of a broker for a load, without a broker",
		Long: `Compute what the retries of a load take of a RabbitMQ node, side by side for each way to retry: queues,
retries per second, waiting messages, memory, disk, processor time, connections and channels, and the
time to declare the queues and to restart. It needs no broker.

The costs are measured on single nodes of two versions of RabbitMQ, with two cores; the worse one of
both counts. The page docs/concepts/sizing.md has the measurements, and the limits of the model: it
knows neither your disks nor your network nor clusters.

By default a message that fails does so in every retry, which is the worst case: each failing message
takes all retries of the policy and becomes a dead letter. With --again 50, half of the retries fail.
Messages wait as long as the policy says, and so many wait at a time. --waiting sets another number,
for an outage of a dependency. The rates are those of one virtual host: for several on one broker,
add their results up.

Memory and disk are for the queues and the waiting messages, above those of an empty broker, and
without messages in main queues and dead-letter queues. "cores" is all processor time of the broker,
"retry cores" its part for retries and dead letters. The busiest retry queue is compared with the
measured rate at which one retry queue hands messages back. A service has a connection to consume and
one for copies; its publishers have others. Channels are the most that all services open together.

With --json: {"load": {...}, "ways": [{"way", "queues", "retries_per_second",
"dead_letters_per_second", "busiest_queue_per_second", "ceiling_per_second", "waiting", "memory_mib",
"disk_mib", "cores", "retry_cores", "declare_seconds", "restart_seconds", "connections", "channels",
"beyond"}]}.

Exit codes: 0 done, whatever the result; 1 the policy file is invalid; 2 wrong usage.`,
		Example: `  amqpretry size --rate 50000 --failures 1 --queues 200
  amqpretry size --rate 1000 --queues 5000 --delays 10s,1m,10m --services 20
  amqpretry size --policies retry.yaml --topic orders --waiting 10000000 --bytes 4096 --json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return run(s, l, topic, delays) },
	}
	s.PoliciesFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&topic, "topic", "orders", "topic, which selects the policy")
	flags.DurationSliceVar(&delays, "delays", nil, "delays of the policy, instead of a file, such as 10s,1m")
	flags.Float64Var(&l.Rate, "rate", 1000, "messages per second in all main queues together")
	flags.Float64Var(&l.Failures, "failures", 1, "percentage of the messages that fail")
	flags.Float64Var(&l.Again, "again", 100, "percentage of the retries that fail again")
	flags.IntVar(&l.Queues, "queues", 1, "number of main queues")
	flags.BoolVar(&l.Classic, "classic", false, "the main queues are classic queues")
	flags.Float64Var(&l.Waiting, "waiting", 0, "number of waiting messages (default: computed from the rate)")
	flags.IntVar(&l.Bytes, "bytes", 2048, "size of a waiting message, headers included")
	flags.IntVar(&l.Services, "services", 1, "number of processes, each of which consumes from all main queues")

	return cmd
}

func run(s *cli.Session, l load, topic string, delays []time.Duration) error {
	policies, err := s.Policies()
	if err != nil {
		return err
	}
	policy := policies.For(topic)
	if delays != nil {
		policy = config.Policy{Delays: delays}
	}
	if err := l.check(); err != nil {
		return err
	}
	if err := policy.Validate(); err != nil {
		return cli.Usage("--delays: %w", err)
	}
	if policy.MaxRetries() == 0 {
		return cli.Usage("--topic: wanted one whose policy retries, found %q with the mode %s", topic, policy.Mode)
	}
	all := l.estimates(policy)
	if s.JSON {
		return s.PrintJSON(map[string]any{"load": l, "ways": all})
	}

	return print(s, all)
}

// check finds what is wrong with the flags.
func (l load) check() error {
	for _, flag := range []struct {
		name               string
		value, least, most float64
	}{
		{"--rate", l.Rate, 0, 1e9}, {"--failures", l.Failures, 0, 100}, {"--again", l.Again, 0, 100},
		{"--queues", float64(l.Queues), 1, 1e6}, {"--waiting", l.Waiting, 0, 1e12},
		{"--bytes", float64(l.Bytes), 0, 1e9}, {"--services", float64(l.Services), 1, 1e6},
	} {
		if !(flag.value >= flag.least && flag.value <= flag.most) { // NaN is neither
			return cli.Usage("%s: wanted %.0f to %.0f, found %v", flag.name, flag.least, flag.most, flag.value)
		}
	}

	return nil
}

// print has a line for each figure, and a column for each way.
func print(s *cli.Session, all []estimate) error {
	p := s.Printer()
	head := []string{""}
	rows := [][]string{{"queues"}, {"retries/s"}, {"dead letters/s"}, {"busiest retry queue, retries/s"},
		{"  it hands back at most"}, {"waiting messages"}, {"memory, MiB"}, {"disk, MiB"}, {"cores"},
		{"  of it for retries"},
		{"first declaration, s"}, {"restart, s"}, {"connections"}, {"channels"}}
	for _, e := range all {
		head = append(head, e.Way)
		for i, value := range []float64{float64(e.Queues), e.Retries, e.DeadLetters, e.Busiest, e.Ceiling, e.Waiting,
			e.MemoryMiB, e.DiskMiB, e.Cores, e.RetryCores, e.Declare, e.Restart, float64(e.Connections),
			float64(e.Channels)} {
			rows[i] = append(rows[i], round(value))
		}
	}
	p.Table(head, rows)
	fits := slices.IndexFunc(all, func(e estimate) bool { return len(e.Beyond) == 0 })
	for _, e := range all {
		for _, text := range e.Beyond {
			p.Line("%s: %s", e.Way, text)
		}
	}
	if fits < 0 {
		p.Line("No way stays within the measured limits: divide the load among brokers.")
	} else if fits > 0 {
		p.Line("The first way within the measured limits: %s", all[fits].Way)
	}

	return p.Err()
}

// round gives two digits of small numbers: the model is not better than that.
func round(value float64) string {
	if value >= 100 || value == float64(int64(value)) {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}

	text := strconv.FormatFloat(value, 'g', 2, 64)
	if rounded, err := strconv.ParseFloat(text, 64); err == nil && strings.Contains(text, "e") { // such as 99.7
		return strconv.FormatFloat(rounded, 'f', -1, 64)
	}

	return text
}
