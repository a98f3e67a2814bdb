// Package config defines retry policies: how many times to retry a failed message, how long to wait
// before each retry, and what to do after the last one. It imports neither a broker client nor
// Watermill; every function is pure.
//
// A [Policy] holds for one queue, [Policies] for all topics of a service:
//
//	policies := config.Policies{
//		Default: config.Policy{Delays: []time.Duration{time.Second, 10 * time.Second, time.Minute}},
//		Topics: map[string]config.Policy{
//			"emails":  {Retries: 8, Backoff: config.Backoff{Kind: config.BackoffExponential, Initial: time.Second, Max: time.Minute}},
//			"metrics": {Mode: config.ModeDeadLetter},
//		},
//	}
//
// Package config/policyfile reads the same from a file.
//
// The zero value of each is useful: retries after 1s, 5s, 30s, 2m and 10m (see [Default]), which is
// 12m36s of waiting in the worst case. No zero means "for ever": a message that keeps failing
// always ends in the dead-letter queue.
//
// Each distinct delay of a policy needs one retry queue on the broker. That is why delays are whole
// milliseconds with one spelling ([FormatDelay]), and a policy has at most 64 of them.
package config
