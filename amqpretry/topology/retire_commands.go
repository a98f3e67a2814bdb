package topology

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// retireFunction takes a virtual host, a queue and options of delete_queue. It deletes the queue if three counts over
// 12 s say that it has no messages and no consumers. One is not enough: a quorum queue counts every 5 s, and until the
// first time after a restart list_queues says 0. What it looks for is a whole row, so that no other queue can be meant;
// that of a queue that is down has no numbers.
const retireFunction = `amqpretry_retire() (
	vhost=$1 queue=$2
	shift 2
	for pause in 6 6 0; do
		if ! { rows=$(rabbitmqctl list_queues --vhost="$vhost" messages consumers name </dev/null) &&
			printf '%s\n' "$rows" | LC_ALL=C grep -qxF -e "$(printf '0\t0\t%s' "$queue")"; }; then
			printf 'kept, as it is not there, not empty, in use or down: %s\n' "$queue" >&2
			exit 1
		fi
		sleep "$pause"
	done
	rabbitmqctl delete_queue --vhost="$vhost" "$@" -- "$queue" </dev/null
)
`

// RetireCommands are the shell commands (sh, bash, zsh) by which an operator retires obsolete queues where the
// management API is not to be had: as a script, or to be pasted. Each queue is deleted only if rabbitmqctl has said
// three times that it has no messages.
//
// It is the weaker way: rabbitmqctl cannot unbind, so an instance with the old policy that is still running may put a
// message into a quorum queue between the last count and the deletion. The comments say what to do before.
//
// A name with control characters, which no shell takes as it is, is a *[NameError].
func RetireCommands(vhost string, queues ...ObsoleteQueue) (string, error) {
	if len(queues) == 0 {
		return "", nil
	}
	var errs []error
	var b strings.Builder
	// A zsh takes pasted comments for commands: nothing in them means anything to a shell, and they have no names in
	// them.
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Deletes retry queues that no policy uses any more, each only if it is empty.")
	line("# First make sure that no instance with an old policy runs any more, as the queues stay bound until then.")
	line("# Then wait %s and half a minute, until what still waits in them is back in its main queue.", config.FormatDelay(longest(queues)))
	line("# Run this while no node of the broker restarts. It takes about 15 seconds for each queue.")
	b.WriteString(retireFunction)
	for _, q := range queues {
		if err := shellSafe("retry queue", q.Name); err != nil {
			errs = append(errs, err)
			continue
		}
		options := ""
		if q.Arguments[amqp.QueueTypeArg] == string(config.QueueTypeClassic) { // quorum queues know no conditions
			options = " --if-empty --if-unused"
		}
		line("amqpretry_retire %s %s%s", shell.Quote(vhost), shell.Quote(q.Name), options)
	}
	errs = append(errs, shellSafe("virtual host", vhost))
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	return b.String(), nil
}

func longest(queues []ObsoleteQueue) time.Duration {
	longest := config.MinDelay
	for _, q := range queues {
		longest = max(longest, q.Delay)
	}
	return longest
}

// shellSafe refuses what a shell drops (NUL), a terminal acts upon when it is pasted, or ends a line.
func shellSafe(object, name string) error {
	if utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl) {
		return nil
	}
	return &NameError{Queue: name, Object: object, Name: name,
		Problem: "the name has control characters, which a shell does not take as they are; use Management.Retire"}
}
