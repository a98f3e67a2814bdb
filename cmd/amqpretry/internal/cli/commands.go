package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/amqpretry/watermill-retry/internal/shell"
)

// Commands spell command lines that are printed, to be pasted, for one virtual host.
type Commands struct {
	VirtualHost string
	// Again are the flags of this program with which a command goes there, as a shell takes them.
	Again []string
	// Before is what stands above each command of this program.
	Before string
}

// AMQPRetry is a command of this program. The last word is quoted, as it is the name of a queue.
func (c Commands) AMQPRetry(command string, words ...string) string {
	line := append([]string{"amqpretry", command}, c.Again...)
	last := len(words) - 1
	line = append(line, words[:last]...)
	if strings.HasPrefix(words[last], "-") {
		line = append(line, "--")
	}
	return c.Before + strings.Join(append(line, shell.Quote(words[last])), " ")
}

// Ctl is a command of rabbitmqctl.
func (c Commands) Ctl(command string, words ...string) string {
	option := "-p " + shell.Quote(c.VirtualHost)
	if strings.HasPrefix(c.VirtualHost, "-") { // it would be taken for an option
		option = "--vhost=" + shell.Quote(c.VirtualHost)
	}
	return strings.Join(append([]string{"rabbitmqctl", command, option}, words...), " ")
}

// Commented are commands for a person who has read what is above them.
func Commented(commands ...string) string {
	return "#   " + strings.ReplaceAll(strings.Join(commands, "\n"), "\n", "\n#   ")
}

// Recreate are the lines that give a main queue the arguments of its plan, and keep its messages.
// The deletion is a comment, for a person who has seen that the queue is empty. RabbitMQ 4.0 to 4.2
// count each look at a message, so there the command refuses a queue with a delivery limit.
//
// Upstream: a nack counts as a failed delivery.
func (c Commands) Recreate(queue string) string {
	file := shell.File("main-queue", queue)
	named := []string{"--dead-letter-queue", shell.Quote(queue)}
	purge := c.AMQPRetry("dlq purge", append(named, "--all", "--yes", "--undo", file, queue)...)
	restore := c.AMQPRetry("dlq import", append(named, queue)...) + " " + file
	return "# Stop all that publish to the queue, let the service handle its messages, and stop the service. This " +
		"takes what\n# is left into a file (RabbitMQ 4.0 to 4.2: from a queue without a delivery limit; else use a " +
		"shovel):\n" + purge + " &&\n" +
		c.Ctl("list_queues", "name", "messages") + "\n" +
		"# If it has 0 messages, delete it, start the service, which declares it, and put the messages back:\n" +
		Commented(c.Ctl("delete_queue", shell.Quote(queue)), restore)
}

// CommandLine returns a command line to paste: the one that was given, without its arguments, and
// with more words. The flags --uri and --management-url, which may have passwords, are left as
// words to fill in.
func CommandLine(cmd *cobra.Command, more ...string) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, is := f.Value.(pflag.SliceValue); is {
			values = list.GetSlice()
		}
		for _, value := range values {
			switch {
			case f.Name == "uri", f.Name == "management-url":
				words = append(words, "--"+f.Name+"="+strings.ToUpper(f.Name))
			case f.Value.Type() == "bool":
				words = append(words, strings.TrimSuffix("--"+f.Name+"="+value, "=true"))
			default:
				words = append(words, "--"+f.Name+"="+shell.Quote(value))
			}
		}
	})

	return strings.Join(append(words, more...), " ")
}
