package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/config/topology"
)

// LadderFlag adds the flag that names a ladder to a command and those below it. Ladder reads it.
// The end of its help, beside, says which other ladders the command is about all the same. Shells
// complete the ladders of the virtual host.
func (s *Session) LadderFlag(cmd *cobra.Command, beside string) {
	const name = "ladder"
	cmd.PersistentFlags().Var(Text(&s.ladder), name, "`name` of the only ladder that the command is about"+beside)
	// It fails for flags that are not there.
	_ = cmd.RegisterFlagCompletionFunc(name, func(
		cmd *cobra.Command, _ []string, typed string,
	) ([]string, cobra.ShellCompDirective) {
		names := slices.DeleteFunc(ladderNames(s.queueNames(cmd.Context())), func(name string) bool {
			return !strings.HasPrefix(name, typed) || !isPlain(name)
		})

		return names, cobra.ShellCompDirectiveNoFileComp
	})
}

// ladderNames lists the ladders that have a queue for unroutable messages among these.
func ladderNames(queues []string) []string {
	var names []string
	for _, queue := range queues {
		l, err := topology.ParseLadderName(strings.TrimSuffix(queue, ".unroutable"))
		if err == nil && queue == l.Unroutable() {
			names = append(names, l.Name())
		}
	}

	return names
}

// Ladder is the ladder that the flag names; named is false without the flag.
func (s *Session) Ladder() (_ topology.Ladder, named bool, err error) {
	if s.ladder == "" {
		return topology.Ladder{}, false, nil
	}
	ladder, err := topology.ParseLadderName(s.ladder)
	if err != nil {
		return ladder, true, Usage("--ladder: %q is not the name of a ladder (%v): wanted a name such as %s", s.ladder,
			err, topology.Ladder{}.Name())
	}

	return ladder, true, nil
}
