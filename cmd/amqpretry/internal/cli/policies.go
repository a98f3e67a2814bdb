package cli

import (
	"cmp"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// EnvPolicies is the variable of the environment that names the policy file.
const EnvPolicies = "AMQPRETRY_POLICIES"

// PoliciesFlag adds the flag of the policy file to a command and those below it.
func (s *Session) PoliciesFlag(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&s.policies, "policies", "", "policy `file`, YAML or JSON; also in the environment, as "+
		EnvPolicies+" (default: the default policy for all topics)")
	_ = cmd.MarkPersistentFlagFilename("policies", "yaml", "yml", "json") // it fails for flags that are not there
}

// Policies loads the policy file, with what the environment overrides, as services do. Without a
// file it is the default policy for every topic.
func (s *Session) Policies() (config.Policies, error) {
	file := s.PolicyFile()
	if file == "" {
		return config.Policies{}, nil
	}

	return policyfile.Load(file)
}

// PolicyFile is the name of the policy file; empty if there is none.
func (s *Session) PolicyFile() string { return cmp.Or(s.policies, s.Getenv(EnvPolicies)) }

// Target is a main queue, with the topic whose policy holds for it.
type Target struct{ Topic, Queue string }

// Targets reads arguments that are QUEUE, whose topic has the same name, or TOPIC=QUEUE.
func Targets(args []string) ([]Target, error) {
	if len(args) == 0 {
		return nil, Usage("no queue: wanted QUEUE, or TOPIC=QUEUE if the topic has another name")
	}

	var errs []error
	targets := make([]Target, len(args))
	for i, arg := range args {
		topic, queue, both := strings.Cut(arg, "=")
		if !both {
			queue = topic
		}
		switch {
		case strings.Contains(arg, "://"):
			errs = append(errs, Usage("found an address instead of a queue: set %s, or --uri", EnvURI))
		case topic == "" || queue == "":
			errs = append(errs, Usage("%q: wanted QUEUE, or TOPIC=QUEUE", arg))
		}
		targets[i] = Target{topic, queue}
	}

	return targets, errors.Join(errs...)
}

// TopologyFlags are the words with which a command sees the same topology.
func TopologyFlags(policyFile, sharedName string) []string {
	var words []string
	if policyFile != "" {
		words = append(words, "--policies", shell.Quote(policyFile))
	}
	if sharedName != "" {
		words = append(words, "--shared-name", shell.Quote(sharedName))
	}

	return words
}

// SharedNameFlag adds the flag of the names of shared retry queues.
func SharedNameFlag(flags *pflag.FlagSet, name *string) {
	flags.StringVar(name, "shared-name", "", "prefix of the names of shared retry queues, as in Names.Shared of the "+
		"services (default retry)")
}
