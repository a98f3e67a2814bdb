package cli

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
)

// completionTime is how long a shell waits for names at most.
const completionTime = 2 * time.Second

// CompleteQueues completes the first argument of a command, or all with many, with names of queues
// that choose takes from all queues of the virtual host. Further arguments are completed as before.
// Without the management API, or where it does not answer in time, there are no names, and nobody
// is told: a shell has no place for an error.
func (s *Session) CompleteQueues(cmd *cobra.Command, many bool, choose func(queues []string) []string) {
	further := cmd.ValidArgsFunction
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !many {
			if further != nil {
				return further(cmd, args, typed)
			}

			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := slices.DeleteFunc(choose(s.queueNames(cmd.Context())), func(name string) bool {
			return !strings.HasPrefix(name, typed) || slices.Contains(args, name) || !isPlain(name)
		})

		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// isPlain tells names that a shell takes as they are: it may not quote what a completion gives.
func isPlain(name string) bool {
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._-:/@+=,%", r)
	})
}

// queueNames lists all queues of the virtual host; none if nobody tells.
func (s *Session) queueNames(ctx context.Context) []string {
	client, err := s.ManagementClient("")
	if err != nil || client == nil {
		return nil
	}
	if ctx == nil { // cobra completes without one
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	queues, err := client.Queues(ctx)
	if err != nil {
		return nil
	}
	names := make([]string, len(queues))
	for i, q := range queues {
		names[i] = q.Name
	}

	return names
}

// MainQueues leaves out the queues that this library declares beside main queues.
func MainQueues(queues []string) []string {
	return slices.DeleteFunc(queues, func(name string) bool {
		return strings.Contains(name, ".retry.") || strings.HasPrefix(name, "retry.") ||
			strings.HasSuffix(name, ".dlq") || strings.HasSuffix(name, ".lock") ||
			strings.HasSuffix(name, ".landing") || ofLadder.MatchString(name)
	})
}

// ofLadder matches the names of the queues of ladders, such as amqpretry.delay.v1.100ms.10x6.30s.
var ofLadder = regexp.MustCompile(`\.v[0-9]+\.[0-9]+m?[smh]\.[0-9]+x[0-9]+\.[^.]+$`)
