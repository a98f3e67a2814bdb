package processor

import (
	"errors"
	"strings"
)

// pattern matches names of failed queues. The star stands for the name of the main queue.
type pattern struct{ before, after string }

func parsePattern(text string) (pattern, error) {
	before, after, found := strings.Cut(text, "*")
	switch {
	case !found || strings.Contains(after, "*"):
		return pattern{}, errors.New("does not have exactly one *")
	case before == "" && after == "":
		return pattern{}, errors.New("matches all queues, so each would be its own main queue")
	}

	return pattern{before, after}, nil
}

// main is the main queue of a failed queue. It is false if the pattern does not match.
func (p pattern) main(failed string) (main string, matches bool) {
	rest, begins := strings.CutPrefix(failed, p.before)
	main, ends := strings.CutSuffix(rest, p.after)

	return main, begins && ends && main != ""
}
