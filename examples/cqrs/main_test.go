package main

import (
	"testing"

	"github.com/amqpretry/watermill-retry/internal/testkit/exampletest"
)

func TestOutput(t *testing.T) {
	t.Parallel()

	exampletest.Output(t, run, `ship: attempt 1
ship: attempt 2
commands: done
mail: attempt 1
mail: attempt 2
mail: attempt 3
mail: dead letter, exhausted
stock: attempt 1
stock: done
reports, the day's: attempt 1
reports, the year's: attempt 1
reports, the day's: attempt 2
reports, the year's: attempt 2
reports: done
`)
}
