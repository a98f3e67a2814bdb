package dlqcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

// typed is a piece of a command line, as a shell takes it: flags, and arguments that may begin with
// a dash.
func typed(flags []string, arguments ...string) string {
	all := flags
	if slices.ContainsFunc(arguments, func(word string) bool { return strings.HasPrefix(word, "-") }) {
		all = append(slices.Clip(flags), "--")
	}
	all = slices.Concat(all, arguments)
	for i := range all {
		all[i] = quote(all[i])
	}

	return strings.Join(all, " ")
}

// quote is a word as a shell takes it. What would do something to a terminal is spelled as $'\033',
// which bash, zsh and ksh read.
func quote(word string) string {
	switch {
	case cli.Safe(word) != word:
		return "$'" + escaped(word) + "'"
	case word != "" && !strings.ContainsFunc(word, func(r rune) bool {
		return r > 0x7e || !strings.ContainsRune(plain, r)
	}):
		return word
	default:
		return shell.Quote(word)
	}
}

const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/:@%+=,"

// escaped has three octal digits for every byte that is not printable ASCII: what follows cannot be
// read as one more of them.
func escaped(word string) string {
	var b strings.Builder
	for _, c := range []byte(word) {
		switch {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\%03o`, c)
		default:
			b.WriteByte(c)
		}
	}

	return b.String()
}
