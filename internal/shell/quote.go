// Package shell spells words for sh, bash and zsh.
package shell

import "strings"

// Quote makes one word of any text, in which nothing means anything to a shell.
func Quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
