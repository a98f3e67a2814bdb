package policyfile

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/amqpretry/watermill-retry/config"
)

// The tags are the one table of fields: each library reads its own, so all say the same.
func TestTags(t *testing.T) {
	var check func(t reflect.Type, path string)
	check = func(typ reflect.Type, path string) {
		for i, f := range fieldsOf(typ) {
			tag, inside := typ.Field(i).Tag, inStruct(path, f.name)
			assert.NotEmpty(t, f.name, "%s.%s", typ, typ.Field(i).Name)
			for library, want := range map[string]string{
				"yaml": f.name + ",omitempty", "json": f.name + ",omitzero", "koanf": f.name, "mapstructure": f.name,
			} {
				assert.Equal(t, want, tag.Get(library), "%s in %s", inside, library)
			}
			switch fieldType := typ.Field(i).Type; fieldType {
			case reflect.TypeFor[config.Backoff](), reflect.TypeFor[config.Ladder]():
				check(fieldType, inside)
			}
		}
	}
	check(reflect.TypeFor[config.Policies](), "")
	check(reflect.TypeFor[config.Policy](), "")
}

func TestNearest(t *testing.T) {
	known := []string{"mode", "retries", "max_age", "never_retry"}
	for name, want := range map[string]string{
		"Mode": "mode", "retrys": "retries", "retires": "retries", "maxAge": "max_age", "max-age": "max_age",
		"MAX_AGE": "max_age", "neverretry": "never_retry",
		"": "", "x": "", "delay": "", "age": "",
		"retries_retries_retries_retries_retries_retries_retries_retries_retries": "",
	} {
		assert.Equal(t, want, nearest(name, known), name)
	}
	assert.Equal(t, 3, distance("kitten", "sitting"))
	assert.Equal(t, 3, distance("", "abc"))
	assert.Equal(t, 0, distance("abc", "abc"))
}
