// Package processorcmd is the command processor: it retries the messages of services in other
// languages, which only reject.
package processorcmd

import (
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/processor"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// options are the flags.
type options struct {
	queues, match []string
	listen        string
	assume        bool
	shared        string
	logLevel      string
	prefetch      int
	poll, close   time.Duration
}

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "processor",
		Short: "Retry the messages of services in other languages, which reject them into failed queues",
		Long: `Run a service that retries what consumers in other languages reject.

The consumers of a main queue, such as orders, reject a message without requeue. The main queue
dead-letters it to its failed queue, such as orders.failed. processor consumes from the failed queue. It
counts the failure, and publishes a copy that waits in a retry queue and returns to orders. After the
last retry, and if the broker itself has removed the message, it publishes a dead letter to orders.dlq.
It acknowledges when the broker has confirmed the copy. The dlq commands work with these dead letters.

The main queue needs the arguments x-dead-letter-exchange and x-dead-letter-routing-key, or a policy of
the broker, that lead to its failed queue. processor declares neither of them, but everything else. A
policy of the policy file holds for the main queue of that name; its strategy must be copy.

--queues names failed queues with their main queues. Main queues may share a failed queue: name it once
for each. A message returns to the main queue that its routing key names, if the broker has set that
while it dead-lettered, else to the one of the newest x-death. --match finds failed queues, and needs the
management API. The star stands for the name of the main queue: '*.failed' finds orders.failed of
orders. New queues are found within --poll, and deleted ones are left. Main queues whose policy has the
mode off are left alone. A pattern after a failed queue finds its main queues: 'failed=shop.*'.

Several instances may run side by side. SIGTERM and ^C end the process when the copies in flight are
confirmed, after --close-timeout at the latest. SIGHUP reads the policy file again; an invalid file
changes nothing.

--listen serves HTTP:
  /livez    200 while the process works, also without a broker
  /readyz   200 when it consumes from its queues, else 503 and the reasons; ?verbose shows all checks
  /metrics  Prometheus series

Logs go to the standard error, with --json as JSON.

Exit codes: 0 ended by a signal; 1 failed; 2 wrong usage, or an invalid policy file.`,
		Example: `  amqpretry processor --policies retry.yaml --queues orders.failed=orders
  amqpretry processor --policies retry.yaml --match '*.failed' --listen :9090
  amqpretry processor --queues orders.failed=orders --queues mails.rejected=mails --json
  amqpretry processor --queues failed=orders --queues failed=mails`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), s, o) },
	}
	s.ConnectionFlags(cmd)
	s.PoliciesFlag(cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&o.queues, "queues", nil, "failed queue and its main queue, `FAILED=MAIN`; repeatable, also "+
		"for one FAILED")
	flags.StringArrayVar(&o.match, "match", nil, "`pattern` of failed queues, such as '*.failed', or of the main "+
		"queues of one, such as 'failed=shop.*'; repeatable")
	flags.StringVar(&o.listen, "listen", "", "`address` for probes and metrics, such as :9090 (default: none)")
	flags.DurationVar(&o.poll, "poll", 30*time.Second, "interval in which queues are looked for")
	flags.DurationVar(&o.close, "close-timeout", 10*time.Second, "longest wait for copies at the end")
	flags.IntVar(&o.prefetch, "prefetch", amqpretry.DefaultPrefetch, "messages of a failed queue in flight at most")
	flags.BoolVar(&o.assume, "assume-topology", false, "declare nothing: an operator has declared the retry topology")
	cli.SharedNameFlag(flags, &o.shared)
	flags.StringVar(&o.logLevel, "log-level", "info", "least level that is logged: debug, info, warn or error")

	return cmd
}

// config reads the flags and the environment.
func config(s *cli.Session, o options) (processor.Config, error) {
	conf := processor.Config{Match: o.match}
	if len(o.queues)+len(o.match) == 0 {
		return conf, cli.Usage("no failed queues: wanted --queues FAILED=MAIN, or --match such as '*.failed'")
	}
	for _, text := range o.queues {
		failed, main, both := strings.Cut(text, "=")
		if strings.Contains(text, "://") {
			return conf, cli.Usage("--queues: found an address instead of queues: set %s, or --uri", cli.EnvURI)
		}
		if !both || failed == "" || main == "" {
			return conf, cli.Usage("--queues: %q: wanted FAILED=MAIN, such as orders.failed=orders", text)
		}
		conf.Queues = append(conf.Queues, processor.Queue{Name: failed, MainQueue: main})
	}
	broker, err := s.Broker()
	if err != nil {
		return conf, err
	}
	conf.URI, conf.Addresses, conf.TLS = broker.URI, broker.Addresses, broker.TLS
	management, given, err := s.Management()
	if err != nil {
		return conf, err
	}
	if len(o.match) > 0 && !given {
		return conf, cli.Usage("--match needs the management API: set %s, or --management-url", cli.EnvManagement)
	}
	conf.Management = management

	return conf, nil
}

// logger writes to the standard error.
func logger(s *cli.Session, o options) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return nil, cli.Usage("--log-level: %q: wanted debug, info, warn or error", o.logLevel)
	}
	handler := &slog.HandlerOptions{Level: level}
	if s.JSON {
		return slog.New(slog.NewJSONHandler(s.Err, handler)), nil
	}

	return slog.New(slog.NewTextHandler(s.Err, handler)), nil
}
