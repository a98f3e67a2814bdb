package config_test

import (
	"fmt"
	"io/fs"
	"net"
	"time"

	"github.com/amqpretry/watermill-retry/config"
)

func ExampleDefault() {
	fmt.Println(config.Default().Schedule(), config.Default().TotalWait())
	// Output: [1s 5s 30s 2m0s 10m0s] 12m36s
}

func ExamplePolicy() {
	policy := config.Policy{
		Delays:  []time.Duration{time.Second, 10 * time.Second},
		Retries: 4, // more than there are delays: the last one repeats
	}
	fmt.Println(policy.Schedule(), "at most", policy.TotalWait())
	// Output: [1s 10s 10s 10s] at most 31s
}

func ExampleBackoff() {
	policy := config.Policy{
		Retries: 6,
		Backoff: config.Backoff{Kind: config.BackoffExponential, Initial: time.Second, Max: 20 * time.Second},
	}
	fmt.Println(policy.Schedule())
	fmt.Println("queues:", policy.DistinctDelays())
	// Output:
	// [1s 2s 4s 8s 16s 20s]
	// queues: [1s 2s 4s 8s 16s 20s]
}

func ExamplePolicy_immediate() {
	policy := config.Policy{
		Immediate: 2,                                              // twice at once, in the same process
		Delays:    []time.Duration{time.Minute, 10 * time.Minute}, // then twice by way of the broker
		Jitter:    0.1,                                            // after 54s..60s and 9m..10m
	}
	fmt.Println(policy.Validate(), policy.MaxRetries(), policy.DistinctDelays())
	// Output: <nil> 2 [1m0s 10m0s]
}

func ExamplePolicy_expiry() {
	policy := config.Policy{
		MaxAge:   time.Hour,         // from the message's timestamp, else from its first delivery
		OnExpiry: config.ExpiryDrop, // instead of the dead-letter queue
	}
	fmt.Println(policy.Validate(), policy.WithDefaults().MaxPostpone)
	// Output: <nil> 24h0m0s
}

func ExamplePolicy_errors() {
	policy := config.Policy{
		NeverRetry: []config.ErrorMatch{config.Is(fs.ErrNotExist)},
		RetryOnly:  []config.ErrorMatch{config.As[*fs.PathError](), config.As[net.Error]()},
	}
	fmt.Println(policy.NeverRetry, policy.RetryOnly)
	// Output: [Is(file does not exist)] [As[*fs.PathError] As[net.Error]]
}

func ExamplePolicy_DelayFor() {
	policy := config.Policy{Delays: []time.Duration{time.Second, 30 * time.Second, 10 * time.Minute}}
	for _, asked := range []time.Duration{0, 2 * time.Second, time.Hour} {
		fmt.Println(asked, "->", policy.DelayFor(asked))
	}
	// Output:
	// 0s -> 1s
	// 2s -> 30s
	// 1h0m0s -> 10m0s
}

func ExampleErrorMatch() {
	missing := config.Is(fs.ErrNotExist)
	fmt.Println(missing.Match(fmt.Errorf("template: %w", &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist})))
	fmt.Println(config.As[net.Error]().Match(fs.ErrNotExist))
	// Output:
	// true
	// false
}

func ExamplePolicies() {
	policies := config.Policies{
		Default: config.Policy{Delays: []time.Duration{time.Second, time.Minute}},
		Topics:  map[string]config.Policy{"metrics": {Mode: config.ModeDeadLetter}},
	}
	fmt.Println(policies.For("orders").Schedule())
	fmt.Println(policies.For("metrics").MaxRetries())
	// Output:
	// [1s 1m0s]
	// 0
}

// A topic takes from the default what it leaves out.
func ExamplePolicies_inherit() {
	policies := config.Policies{
		Default: config.Policy{Delays: []time.Duration{time.Second, time.Minute}, MaxAge: time.Hour},
		Topics: map[string]config.Policy{
			"payments": {Retries: 3},
			"archive":  {Delays: []time.Duration{2 * time.Hour}, MaxAge: config.None},
		},
	}
	fmt.Println(policies.For("payments").Schedule(), policies.For("payments").MaxAge)
	fmt.Println(policies.For("archive").Schedule(), policies.For("archive").MaxAge)
	// Output:
	// [1s 1m0s 1m0s] 1h0m0s
	// [2h0m0s] 0s
}

func ExamplePolicies_globs() {
	policies := config.Policies{
		Topics: map[string]config.Policy{
			"orders.*":       {Retries: 3},
			"orders.*.audit": {Mode: config.ModeDeadLetter},
			"orders.eu":      {Retries: 1},
		},
	}
	for _, topic := range []string{"orders.us", "orders.us.audit", "orders.eu", "mails"} {
		fmt.Println(topic, policies.For(topic).Schedule())
	}
	// Output:
	// orders.us [1s 5s 30s]
	// orders.us.audit []
	// orders.eu [1s]
	// mails [1s 5s 30s 2m0s 10m0s]
}

func ExampleTypeName() {
	missing := config.TypeName("*fs.PathError")
	fmt.Println(missing.Match(fmt.Errorf("template: %w", &fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist})))
	fmt.Println(config.Policy{NeverRetry: []config.ErrorMatch{config.TypeName("*errors.errorString")}}.Validate())
	// Output:
	// true
	// NeverRetry[0]: matches errors of any kind: must be the type of one kind of error; values such as io.EOF need config.Is, in code, got TypeName(*errors.errorString)
}

func ExamplePolicies_Validate() {
	policies := config.Policies{Topics: map[string]config.Policy{
		"orders": {Retries: 2000, Delays: []time.Duration{time.Second, time.Minute, 500 * time.Microsecond}},
	}}
	fmt.Println(policies.Validate())
	// Output:
	// Policies.Topics["orders"].Retries: out of bounds: must be 1..1000, or 0 for one per delay, got 2000
	// Policies.Topics["orders"].Delays[2]: too short: must be at least 1ms, got 500µs
}

func ExamplePolicy_Equal() {
	list := config.Policy{Delays: []time.Duration{time.Second, 2 * time.Second}}
	grown := config.Policy{Retries: 2, Backoff: config.Backoff{Kind: config.BackoffLinear, Initial: time.Second}}
	fmt.Println(list.Equal(grown))
	// Output: true
}

func ExampleFormatDelay() {
	for _, d := range []time.Duration{90 * time.Second, 1500 * time.Millisecond, 2 * time.Hour} {
		fmt.Println(config.FormatDelay(d))
	}
	// Output:
	// 90s
	// 1500ms
	// 2h
}

func ExampleParseDelay() {
	fmt.Println(config.ParseDelay("90s"))
	fmt.Println(config.ParseDelay("60s"))
	// Output:
	// 1m30s <nil>
	// 0s delay "60s" is not canonical: must be "1m"
}
