package rabbitmq

import (
	"fmt"

	"github.com/amqpretry/watermill-retry/internal/header"
)

// SameArgument tells whether the broker takes both values of an argument for the same: it does not
// look at the width of integers.
func SameArgument(a, b any) bool {
	if n, isInteger := header.Integer(a); isInteger {
		m, isInteger := header.Integer(b)
		return isInteger && n == m
	}
	return fmt.Sprintf("%T %v", a, a) == fmt.Sprintf("%T %v", b, b)
}

// MaxPrefetch is what AMQP has room for; amqp091-go would send one more as 0, which means no limit.
//
// Upstream: only the low 16 bits of a prefetch are sent; no issue known, read in its source;
// amqp091-go 1.16; TestNewRefuses; remove when amqp091-go refuses such a prefetch.
const MaxPrefetch = 65535
