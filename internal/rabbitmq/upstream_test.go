package rabbitmq

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAtLeast(t *testing.T) {
	for version, want := range map[string]bool{
		"3.10.0": true, "3.9.29": false, "4.0.0-rc.1": true, "10.0.1": true, "3.10-dev": true, "3.9+5.g1234": false,
		"": false, "x.y": false, "4": false, "3.": false,
	} {
		assert.Equal(t, want, AtLeast(version, 3, 10), version)
	}
}

func TestHoldsBack(t *testing.T) {
	for version, want := range map[string]bool{
		"3.10.8": false, "3.13.7": false, "4.0.5": false, "4.3.6": false, "4.3.0-rc.2": false,
		"4.3.0+88.g1a2b3c4": false,
		"4.4.0":             true, "4.4.0-rc.1": true, "4.4.0-dev": true, "4.4-dev": true,
		"4.4.0-alpha.12+5.g1a2b3c4": true, "4.10.0": true, "5.0.0": true,
		"0.0.0": true, "": true, "main": true, "4": true, "v4.3.6": true,
	} {
		assert.Equal(t, want, HoldsBack(version), version)
	}
}
