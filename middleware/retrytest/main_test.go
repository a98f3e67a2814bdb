package retrytest_test

import (
	"testing"

	"go.uber.org/goleak"
)

// A life leaves nothing running.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
