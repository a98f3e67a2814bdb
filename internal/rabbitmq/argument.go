package rabbitmq

import "fmt"

// SameArgument tells whether the broker takes both values of an argument for the same: it does not
// look at the width of integers.
func SameArgument(a, b any) bool {
	if n, isInteger := Integer(a); isInteger {
		m, isInteger := Integer(b)
		return isInteger && n == m
	}
	return fmt.Sprintf("%T %v", a, a) == fmt.Sprintf("%T %v", b, b)
}

// Integer is the value of an argument that is an integer of any width, which the broker does not
// look at.
func Integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int:
		return int64(n), true
	case int8:
		return int64(n), true
	case int16:
		return int64(n), true
	case int32:
		return int64(n), true
	case int64:
		return n, true
	case uint8:
		return int64(n), true
	case uint16:
		return int64(n), true
	case uint32:
		return int64(n), true
	default:
		return 0, false
	}
}

// MaxPrefetch is what AMQP has room for; amqp091-go would send one more as 0, which means no limit.
//
// Upstream: only the low 16 bits of a prefetch are sent; no issue known, read in its source;
// amqp091-go 1.16; TestNewRefuses; remove when amqp091-go refuses such a prefetch.
const MaxPrefetch = 65535
