package policyfile_test

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/policyfile"
)

var update = flag.Bool("update", false, "write policies.schema.json")

// The file is what editors fetch; go generate writes it.
func TestSchemaFile(t *testing.T) {
	const file = "policies.schema.json"
	if *update {
		require.NoError(t, os.WriteFile(file, policyfile.JSONSchema(), 0o644))
	}
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(policyfile.JSONSchema()), string(written), "it is stale: go generate ./config/policyfile")
}
