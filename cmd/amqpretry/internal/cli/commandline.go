package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/amqpretry/watermill-retry/internal/shell"
)

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
