package dlqcmd

import (
	"context"
	"fmt"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// broker tells brokers and virtual hosts from each other by the name of the cluster, which is the
// same on all its nodes and whatever address leads to them.
func broker(s *cli.Session) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		connection, err := s.Dial(ctx)
		if err != nil {
			return "", err
		}
		defer func() { _ = connection.Close() }()

		return fmt.Sprintf("%v, virtual host %q", connection.Properties["cluster_name"], connection.Config.Vhost), nil
	}
}
