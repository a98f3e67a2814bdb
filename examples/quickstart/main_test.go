package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/internal/testkit/brokertest"
)

// TestQuickstart checks the whole output, apart from what differs from run to run. It is that in
// README.
func TestQuickstart(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), brokertest.URI(t), &out))
	require.Equal(t, normalized(inReadme(t)), normalized(out.String()))
}

// inReadme is the block of README that shows the output.
func inReadme(t *testing.T) string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	_, behind, found := strings.Cut(string(readme), "[examples/quickstart](examples/quickstart/main.go)")
	require.True(t, found)
	_, block, found := strings.Cut(behind, "```\n")
	require.True(t, found)
	block, _, found = strings.Cut(block, "```\n")
	require.True(t, found)

	return block
}

// differs is what is not the same in every run.
var differs = regexp.MustCompile(`quickstart-\w+|\d{4}-\d\d-\d\dT[\d:.]+Z`)

// normalized makes outputs comparable. Tenths of a second are what the example prints, and a busy
// machine may be late by some; messages that are due at the same time may overtake each other.
func normalized(output string) []string {
	output = differs.ReplaceAllString(output, "…")
	output = regexp.MustCompile(`(?m)^(  \d)\.\d`).ReplaceAllString(output, "$1.x")
	attempts, letters, _ := strings.Cut(output, "\n\n")
	sorted := strings.Split(attempts, "\n")
	slices.Sort(sorted)

	return append(sorted, strings.Split(letters, "\n")...)
}
