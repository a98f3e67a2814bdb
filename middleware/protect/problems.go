package protect

import (
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

// problems collects what is wrong with a config, below a path that ends in a dot.
type problems struct {
	path string
	errs []error
}

func (p *problems) add(field, problem, wanted, found string) {
	p.errs = append(p.errs, &config.FieldError{Path: p.path + field, Problem: problem, Wanted: wanted, Found: found})
}

func (p *problems) notNegative(field string, d time.Duration) {
	if d < 0 {
		p.add(field, "negative", "more than 0, or 0 for the default", d.String())
	}
}
