package amqpretry

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/assert"
)

func TestPrefetch(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ option, config, concurrency, want int }{
		"nothing said":                 {0, 0, 1, 0},
		"watermill-amqp's own configs": {0, 1, 8, 0},
		"a config that says more":      {0, 2, 1, 2},
		"a config that says much":      {0, 65535, 1, 65535},
		"the option":                   {7, 0, 1, 7},
		"the option before the config": {7, 100, 1, 7},
		"the option asks for 1":        {1, 100, 1, 1},
		"never below the concurrency":  {5, 1, 8, 8},
		"nor the config's":             {0, 5, 8, 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := &Retrier{options: Options{Prefetch: test.option, Concurrency: test.concurrency,
				Logger: watermill.NopLogger{}}}
			p.config.Consume.Qos.PrefetchCount = test.config
			assert.Equal(t, test.want, p.prefetch())
		})
	}
}
