// Command amqpretry works with the retries and dead-letter queues that this module makes on
// RabbitMQ.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/delayscmd"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/dlqcmd"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/doctor"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/groupcmd"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/processorcmd"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/servecmd"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/simulate"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/sizecmd"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/topologycmd"
)

var commands = []func(*cli.Session) *cobra.Command{
	topologycmd.Command, groupcmd.Command, dlqcmd.Command, delayscmd.Command, processorcmd.Command, servecmd.Command,
	doctor.Command, simulate.Command, sizecmd.Command, cli.ConnectionTopic, dlqcmd.FiltersTopic,
}

func main() {
	os.Exit(cli.Run(context.Background(), cli.NewSession(), os.Args[1:], commands...))
}
