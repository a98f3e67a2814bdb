package arrows

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The picture for light pages and the one for dark pages differ in their colours only.
func TestPicturesAreAlike(t *testing.T) {
	t.Parallel()

	colour := regexp.MustCompile(`#[0-9a-f]{6}\b`)
	for _, picture := range []string{"message", "ladder"} {
		drawn := map[string]string{}
		for _, name := range []string{"light", "dark"} {
			text := read(t, root+"/docs/img/"+picture+"-"+name+".svg")
			require.Regexp(t, colour, text)
			drawn[name] = colour.ReplaceAllString(text, "COLOUR")
		}
		assert.Equal(t, drawn["light"], drawn["dark"], picture)
	}
}
