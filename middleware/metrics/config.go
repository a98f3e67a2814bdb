package metrics

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/amqpretry/watermill-retry/config"
)

// Defaults of the config.
const (
	defaultNamespace    = "amqpretry"
	defaultMaxHandlers  = 200
	defaultMaxQueues    = 1000
	defaultMaxCauses    = 20
	defaultDepthTimeout = 3 * time.Second
)

// Config says where the series go. Only Registerer is required.
type Config struct {
	// Registerer gets the series: a *prometheus.Registry, or prometheus.DefaultRegisterer if the
	// global one is meant. Required.
	Registerer prometheus.Registerer

	// Namespace is what all names begin with. Defaults to "amqpretry", which is what the dashboard
	// and the alert rules ask for: to tell several Metrics apart, prefer ConstLabels.
	Namespace string

	// ConstLabels are added to all series. Optional.
	ConstLabels prometheus.Labels

	// MaxHandlers is how many pairs of topic and handler, and how many topics, have series of their
	// own. Defaults to 200.
	MaxHandlers int

	// MaxQueues is how many main queues, and how many retry and dead-letter queues, have series of
	// their own. Defaults to 1000.
	MaxQueues int

	// MaxCauses is how many causes of dead letters have series of their own, for each topic: the
	// first ones to come, and in the second half those that come twice. Further ones are counted
	// under "other". A cause gives its series up when it was not seen for a day and another one
	// needs it. Defaults to 20.
	MaxCauses int

	// DepthTimeout is how long a scrape waits for the depths of the queues. It must be shorter than
	// Prometheus's scrape_timeout, or a broker that does not answer costs the whole scrape.
	// Defaults to 3s.
	DepthTimeout time.Duration

	// Logger is told when the depths of the queues cannot be read any more, and when they can be
	// again. Defaults to slog.Default(); watermill.NopLogger{} logs nothing.
	Logger watermill.LoggerAdapter
}

func (c *Config) setDefaults() {
	if c.Namespace == "" {
		c.Namespace = defaultNamespace
	}
	if c.MaxHandlers == 0 {
		c.MaxHandlers = defaultMaxHandlers
	}
	if c.MaxQueues == 0 {
		c.MaxQueues = defaultMaxQueues
	}
	if c.MaxCauses == 0 {
		c.MaxCauses = defaultMaxCauses
	}
	if c.DepthTimeout == 0 {
		c.DepthTimeout = defaultDepthTimeout
	}
	if c.Logger == nil {
		c.Logger = watermill.NewSlogLogger(nil)
	}
}

// labelName is what every version of Prometheus takes, and every query can spell without quotes.
var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// Validate reports all problems in one error, as joined [*config.FieldError]s.
func (c Config) Validate() error {
	var errs []error
	add := func(field, problem, wanted, found string) {
		errs = append(errs, &config.FieldError{Path: "Config." + field, Problem: problem, Wanted: wanted, Found: found})
	}

	if isNil(c.Registerer) {
		add("Registerer", "missing", "a *prometheus.Registry, or prometheus.DefaultRegisterer if the global one is "+
			"meant", "nil")
	}
	if c.Namespace != "" && !labelName.MatchString(c.Namespace) {
		add("Namespace", "not a name", "letters, digits and _, and no digit first", strconv.Quote(c.Namespace))
	}
	for _, name := range slices.Sorted(maps.Keys(c.ConstLabels)) {
		field := "ConstLabels[" + strconv.Quote(name) + "]"
		switch {
		case !labelName.MatchString(name) || len(name) > 1 && name[:2] == "__":
			add(field, "not a name", "letters, digits and _, and neither a digit nor __ first", strconv.Quote(name))
		case slices.Contains(ownLabels, name):
			add(field, "taken", fmt.Sprintf("another name than %q, which are the labels of the series", ownLabels),
				strconv.Quote(name))
		case !utf8.ValidString(c.ConstLabels[name]):
			add(field, "not a text", "valid UTF-8", strconv.Quote(c.ConstLabels[name]))
		}
	}
	atLeastOne := func(field string, found, usual int) {
		if found < 0 {
			add(field, "out of bounds", fmt.Sprintf("above 0, or 0 for %d", usual), strconv.Itoa(found))
		}
	}
	atLeastOne("MaxHandlers", c.MaxHandlers, defaultMaxHandlers)
	atLeastOne("MaxQueues", c.MaxQueues, defaultMaxQueues)
	atLeastOne("MaxCauses", c.MaxCauses, defaultMaxCauses)
	if c.DepthTimeout < 0 {
		add("DepthTimeout", "out of bounds", fmt.Sprintf("above 0, or 0 for %s", defaultDepthTimeout),
			c.DepthTimeout.String())
	}

	return errors.Join(errs...)
}

// isNil tells also of a nil *Registry in the interface, which is what a forgotten field looks like.
func isNil(r prometheus.Registerer) bool {
	if r == nil {
		return true
	}
	v := reflect.ValueOf(r)

	return v.Kind() == reflect.Pointer && v.IsNil()
}
