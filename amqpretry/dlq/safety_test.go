package dlq

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/internal/httpapi"
)

// What a quorum queue's own delivery limit is depends on the version: a negative one is none from
// 4.0 on, and 0 before.
func TestLimitOf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit   any
		version string
		want    int64
	}{
		{int64(-1), "3.10.8", 0}, {int64(-1), "3.13.7", 0}, {int64(-1), "4.0.0", noLimit},
		{int64(-1), "4.3.6", noLimit},
		{int64(0), "3.10.8", 0}, {int64(0), "4.3.6", 0},
		{nil, "3.13.7", noLimit}, {nil, "4.0.0", 20}, {nil, "4.3.6", 20},
		{int64(7), "3.10.8", 7}, {int64(7), "4.3.6", 7}, {int64(1<<31 - 1), "4.0.5", noLimit},
		{int64(1 << 40), "4.0.5", noLimit},
	} {
		q := httpapi.Queue{Arguments: httpapi.Arguments{}}
		if test.limit != nil {
			q.Arguments["x-delivery-limit"] = test.limit
		}
		assert.Equal(t, test.want, limitOf(q, test.version), "%v on %s", test.limit, test.version)
	}
}
