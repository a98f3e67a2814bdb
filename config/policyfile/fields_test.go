package policyfile

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
)

// The tags are the one table of fields: each library reads its own, so all say the same. A library
// ignores max_age without a word if the field has no tag for it.
func TestTags(t *testing.T) {
	for _, value := range []any{config.Policies{}, config.Policy{}, config.Backoff{}, config.Ladder{}} {
		typ := reflect.TypeOf(value)
		for i, name := range fieldNames(typ) {
			tag := typ.Field(i).Tag
			assert.NotEmpty(t, name, "%s.%s", typ, typ.Field(i).Name)
			for library, want := range map[string]string{
				"yaml": name + ",omitempty", "json": name + ",omitzero", "koanf": name, "mapstructure": name,
			} {
				assert.Equal(t, want, tag.Get(library), "%s of %s in %s", name, typ, library)
			}
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"mode", "retries", "max_age", "never_retry"}
	for name, want := range map[string]string{
		"Mode": "mode", "retrys": "retries", "retires": "retries",
		"retry": "retries", "maxAge": "max_age", "max-age": "max_age",
		"MAX_AGE": "max_age", "neverretry": "never_retry",
		"": "", "x": "", "delay": "", "age": "",
		"retries_retries_retries_retries_retries_retries_retries_retries_retries": "",
	} {
		assert.Equal(t, want, nearest(name, known), name)
	}
}
