package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// topicAnnotation marks a flag that a help topic describes, with the title and the name of the
// topic.
const topicAnnotation = "amqpretry/help-topic"

// DescribeInTopic leaves flags out of the help of their commands, which names the help topic
// instead.
func DescribeInTopic(flags *pflag.FlagSet, title, topic string) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Annotations == nil {
			flag.Annotations = map[string][]string{}
		}
		flag.Annotations[topicAnnotation] = []string{title, topic}
	})
}

// HelpTopic makes `amqpretry help NAME` print a text and flags that several commands have.
func HelpTopic(name, short, text string, flags *pflag.FlagSet) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: text + "\n\nFlags:\n" + strings.TrimRight(flags.FlagUsages(),
		"\n")}
}

// usageWithTopics prints the usage of a command without the flags that help topics describe, and
// names these topics.
func usageWithTopics(usage func(*cobra.Command) error) func(*cobra.Command) error {
	return func(cmd *cobra.Command) error {
		var hidden []*pflag.Flag
		var topics []string
		hide := func(flag *pflag.Flag) {
			topic := flag.Annotations[topicAnnotation]
			if topic == nil || flag.Hidden {
				return
			}
			flag.Hidden = true
			hidden = append(hidden, flag)
			line := fmt.Sprintf("%s: see %q\n", topic[0], cmd.Root().Name()+" help "+topic[1])
			if !slices.Contains(topics, line) {
				topics = append(topics, line)
			}
		}
		cmd.LocalFlags().VisitAll(hide)
		cmd.InheritedFlags().VisitAll(hide)
		defer func() {
			for _, flag := range hidden {
				flag.Hidden = false // the shell still completes it
			}
		}()
		if err := usage(cmd); err != nil || topics == nil {
			return err
		}
		_, err := fmt.Fprint(cmd.OutOrStderr(), "\n"+strings.Join(topics, ""))

		return err
	}
}
