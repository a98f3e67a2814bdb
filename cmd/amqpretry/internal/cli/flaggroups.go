package cli

import (
	"regexp"
	"strings"
)

// cobra's texts about groups of flags. The last pair of brackets has the flags of the user's
// mistake.
var (
	exclusive = regexp.MustCompile(`^if any flags in the group .* none of the others can be; \[(.*)\] were all set$`)
	together  = regexp.MustCompile(`^if any flags in the group \[(.*)\] are set they must all be set; missing \[(.*)\]$`)
	oneNeeded = regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`)
)

// aboutGroup words an error about a group of flags for users; other texts stay the same.
func aboutGroup(text string) string {
	if m := exclusive.FindStringSubmatch(text); m != nil {
		return flagNames(m[1], "and") + " exclude each other: pass only one of them"
	}
	if m := together.FindStringSubmatch(text); m != nil {
		return flagNames(m[1], "and") + " need each other: add " + flagNames(m[2], "and")
	}
	if m := oneNeeded.FindStringSubmatch(text); m != nil {
		return "wanted " + flagNames(m[1], "or")
	}

	return text
}

// flagNames lists the names of flags, such as "--a, --b and --c".
func flagNames(names, and string) string {
	all := strings.Fields(names)
	for i := range all {
		all[i] = "--" + all[i]
	}
	if last := len(all) - 1; last > 0 {
		return strings.Join(all[:last], ", ") + " " + and + " " + all[last]
	}

	return strings.Join(all, "")
}
