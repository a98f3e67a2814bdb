package rabbitmq

import "fmt"

// SameArgument tells whether the broker takes both values of an argument for the same: it does not look at the width of
// integers.
func SameArgument(a, b any) bool {
	if n, isInteger := Integer(a); isInteger {
		m, isInteger := Integer(b)
		return isInteger && n == m
	}
	return fmt.Sprintf("%T %v", a, a) == fmt.Sprintf("%T %v", b, b)
}
