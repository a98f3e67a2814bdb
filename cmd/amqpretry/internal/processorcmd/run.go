package processorcmd

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/amqpretry/processor"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/config/topology"
)

func run(ctx context.Context, s *cli.Session, o options) error {
	log, err := logger(s, o)
	if err != nil {
		return err
	}
	conf, err := config(s, o)
	if err != nil {
		return err
	}
	policies, err := s.Policies()
	if err != nil {
		return cli.Usage("%w", err)
	}
	m, err := newMonitor(o.listen, log)
	if err != nil {
		return err
	}
	defer m.close()
	processor, err := processor.New(conf, processor.Options{
		Policies: policies, Names: topology.Names{Shared: o.shared}, AssumeTopology: o.assume,
		Prefetch: o.prefetch, PollInterval: o.poll, CloseTimeout: o.close,
		Logger: watermill.NewSlogLogger(log), OnEvent: m.onEvent,
	})
	if err != nil {
		return cli.Usage("%w", err)
	}
	defer func() { _ = processor.Close() }()

	m.serve(processor)
	defer reload(s, processor, log)()

	err = processor.Run(ctx)
	log.Info("Processor ended")

	return errors.Join(err, m.failed())
}

// reload reads the policy file again at each SIGHUP, until it is stopped.
func reload(s *cli.Session, processor *processor.Processor, log *slog.Logger) (stop func()) {
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-signals:
			case <-done:
				return
			}
			policies, err := s.Policies()
			if err == nil {
				err = processor.SetPolicies(policies)
			}
			if err != nil {
				log.Error("Policy file is invalid; keeping the current policies", "err", err)
				continue
			}
			log.Info("Policies read again")
		}
	}()

	return func() {
		signal.Stop(signals)
		close(done)
	}
}
