// Package adapter is amqpv2, or with the build tag amqpv3 amqpv3. Tests that import it go over
// both.
package adapter
