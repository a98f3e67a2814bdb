package processor

import (
	"errors"
	"strings"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// pattern matches names of failed queues, and the star stands for the name of the main queue. With a failed queue, as
// in failed=orders-*, it matches names of the main queues of that one.
type pattern struct{ before, after, failed string }

func parsePattern(text string) (pattern, error) {
	failed, star, shared := strings.Cut(text, "=")
	if !shared {
		failed, star = "", text
	}
	before, after, found := strings.Cut(star, "*")
	switch {
	case !found || strings.Contains(after, "*"):
		return pattern{}, errors.New("does not have exactly one *")
	case shared && failed == "":
		return pattern{}, errors.New("has no failed queue before the =")
	case before == "" && after == "" && shared:
		return pattern{}, errors.New("matches all queues, and each would be a main queue")
	case before == "" && after == "":
		return pattern{}, errors.New("matches all queues, so each would be its own main queue")
	}

	return pattern{before, after, failed}, nil
}

// star is what the star stands for. It is false if the pattern does not match.
func (p pattern) star(name string) (star string, matches bool) {
	rest, begins := strings.CutPrefix(name, p.before)
	star, ends := strings.CutSuffix(rest, p.after)

	return star, begins && ends && star != ""
}

// main is the main queue of a failed queue. It is false if the pattern does not match.
func (p pattern) main(failed string) (main string, matches bool) {
	if p.failed != "" {
		return "", false
	}

	return p.star(failed)
}

// isMain tells whether the pattern matches a main queue of its failed queue. A retry queue that matches as well
// dead-letters elsewhere; where a policy of the broker says so, that is not known.
func (p pattern) isMain(q httpapi.Queue) bool {
	_, matches := p.star(q.Name)
	exchange, key := q.Arguments["x-dead-letter-exchange"], q.Arguments["x-dead-letter-routing-key"]

	return p.failed != "" && matches && q.Name != p.failed && (exchange != "" || key == p.failed)
}
