package topology

import "strings"

// quote makes one word of any text, in which nothing means anything to a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
