// Package foreign tests the processor with consumers in other languages: Python (pika) and
// JavaScript (amqplib). They know nothing of retries, and only acknowledge or reject.
//
// Its tests install both clients into a temporary folder, so they have a build tag of their own:
// make foreign.
package foreign
