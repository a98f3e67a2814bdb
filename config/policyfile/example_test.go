package policyfile_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/amqpretry/watermill-retry/config"
	"github.com/amqpretry/watermill-retry/config/policyfile"
)

func ExampleParse() {
	policies, err := policyfile.Parse([]byte(`
default:
  delays: [1s, 1m]
topics:
  payments.*:
    retries: 4
    backoff: {kind: exponential, initial: 1s, max: 5s}
    never_retry: ["*json.SyntaxError"]
`))
	fmt.Println(err)
	fmt.Println(policies.For("orders").Schedule())
	fmt.Println(policies.For("payments.eu").Schedule())
	// Output:
	// <nil>
	// [1s 1m0s]
	// [1s 2s 4s 5s]
}

func ExampleParse_errors() {
	_, err := policyfile.Parse([]byte(`
default:
  retires: 3
  max_age: 30
topics:
  orders:
    delays:
      - 1s
      - 500us
`))
	fmt.Println(err)
	// Output:
	// line 3: default.retires: unknown key, did you mean retries?
	// line 4: default.max_age: wrong type: must be a duration with its units, such as 500ms, 30s, 1m30s or 24h (a day has no unit of its own), got 30 (a number)
	// line 9: topics["orders"].delays[1]: too short: must be at least 1ms, got 500µs
}

func ExampleLoad() {
	policies, err := policyfile.Load("testdata/retry.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(policies.For("orders").TotalWait())

	_, err = policyfile.Load("testdata/broken.yaml")
	var field *config.FieldError
	if errors.As(err, &field) {
		fmt.Println(field.File, field.Line, field.Path)
	}
	fmt.Println(err)
	// Output:
	// 31s
	// testdata/broken.yaml 5 topics["orders"].delays[1]
	// testdata/broken.yaml:5: topics["orders"].delays[1]: too short: must be at least 1ms, got 500µs
}

func ExampleFormat() {
	policies := config.Policies{
		Default: config.Policy{Delays: []time.Duration{time.Second, time.Minute}, Retries: 5},
		Topics: map[string]config.Policy{
			"payments": {Retries: 6, Backoff: config.Backoff{
				Kind: config.BackoffExponential, Initial: time.Second, Max: time.Minute,
			}},
			"mails": {Mode: config.ModeDeadLetter},
		},
	}
	text, err := policyfile.Format(policies) // os.WriteFile("retry.yaml", text, 0o600)
	fmt.Println(err)
	fmt.Print(string(text))
	// Output:
	// <nil>
	// default:
	//   retries: 5
	//   delays: [1s, 1m0s]
	// topics:
	//   "mails":
	//     mode: "dead-letter"
	//   "payments":
	//     retries: 6
	//     backoff:
	//       kind: "exponential"
	//       initial: 1s
	//       max: 1m0s
}
