package amqpretry_test

import (
	"os"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
)

// The page of the options has all of them.
func TestOptionsAreDocumented(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../docs/reference/options.md")
	require.NoError(t, err)
	for _, field := range reflect.VisibleFields(reflect.TypeFor[amqpretry.Options]()) {
		assert.Contains(t, string(page), "\n| `"+field.Name+"` | ")
	}
}
