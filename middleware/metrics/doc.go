// Package metrics makes Prometheus series from the events of a retrier, and reads the depths of its
// retry and dead-letter queues, and of the queues of exact delays.
//
//	m, err := metrics.New(metrics.Config{Registerer: registry})
//	retrier, err := amqpv2.New(conf, amqpretry.Options{OnEvent: m.OnEvent})
//	m.Watch(retrier)
//
// One Metrics serves any number of retriers. docs/reference/metrics.md has a dashboard, alert
// rules, and what the numbers cannot see.
//
// # Series
//
// The labels topic and handler tell the subject of an event; handler is empty where no handler was
// called.
//
//	amqpretry_calls_total{topic, handler, outcome}                        counter    calls of handlers that have ended, by how
//	amqpretry_call_duration_seconds{topic, handler, outcome}              histogram  from the call of a handler to the end of it
//	amqpretry_calls_in_flight{topic, handler}                             gauge      calls of handlers that have begun and not ended
//	amqpretry_messages_total{topic, handler, result}                      counter    deliveries of messages, by what became of them
//	amqpretry_attempts_until_success{topic, handler}                      histogram  number of the attempt that succeeded, 1 for the first
//	amqpretry_recovery_duration_seconds{topic, handler}                   histogram  from a message's first failure to its success
//	amqpretry_dead_letters_total{topic, reason}                           counter    messages sent to the dead-letter queue, confirmed by the broker
//	amqpretry_dead_letter_causes_total{topic, reason, fingerprint}        counter    dead letters by the fingerprint of their cause
//	amqpretry_forward_duration_seconds{topic}                             histogram  from a verdict to the broker's confirmation of the copy
//	amqpretry_dead_letters_set_aside_total{topic}                         counter    dead letters whose own handler has failed, each time
//	amqpretry_withdrawn_deliveries_total{topic}                           counter    deliveries that the broker has taken back, and whose handler ran on for 10 s or more
//	amqpretry_consuming_subscriptions{topic}                              gauge      subscriptions that consume
//	amqpretry_held_deliveries{queue}                                      gauge      failed deliveries whose copies the broker does not confirm
//	amqpretry_topology_repairs_total{queue}                               counter    retry topologies declared again because a part was missing
//	amqpretry_early_returns_total{queue}                                  counter    messages that came back before their delay was over, and went to wait again
//	amqpretry_connections_opened_total{connection}                        counter    connections to the broker, the first and those after a loss
//	amqpretry_connections_lost_total{connection}                          counter    connections to the broker that were lost
//	amqpretry_blocked_connections{connection}                             gauge      connections that the broker blocks, for a memory or disk alarm
//	amqpretry_queue_messages_ready{queue, role, main_queue}               gauge      ready messages in a retry, dead-letter or shared queue
//	amqpretry_queue_wait_seconds{queue, role, main_queue}                 gauge      longest wait of the messages that lie in a queue, where it has any
//	amqpretry_queue_depths_up{}                                           gauge      1 if the last reading of the queues' depths was complete, else 0
//	amqpretry_queue_depths_errors_total{}                                 counter    readings of queues' depths that failed or took too long
//
// # Values of labels
//
//	outcome     succeeded, requeued, or the class of the failure: error, panic, permanent, drop, postponed, unpublishable,
//	            crashed, undecodable, rejected (by a consumer in another language, see processor.Processor); other for
//	            anything else
//	result      succeeded, retried, postponed, dead-lettered, dropped, requeued, abandoned
//	reason      exhausted, permanent, expired, undecodable, panic, crashed, unpublishable, too-large, postponed-too-long;
//	            of a processor also rejected, delivery-limit, maxlen; other for anything else
//	connection  subscriber, dead-letter subscriber, groups (all subscribers of consumer groups), forwarder (publishes the
//	            copies), delay publisher, observer (reads the depths), processor; other for anything else
//	role        retry, dead-letter; with exact delays also delay (messages wait) and unroutable (no
//	            target takes them); of a processor also failed (it drains them); other for anything else
//	fingerprint that of retry.Cause, as dlq stat --by fingerprint shows it; other for what is beyond Config.MaxCauses
//	queue       the main queue; with amqpretry_queue_messages_ready and amqpretry_queue_wait_seconds the queue beside it
//	main_queue  the queue it belongs to; empty for queues that main queues share
//
// Topics, handlers and queues are as many as the service subscribes to, and no more than
// Config.MaxHandlers and Config.MaxQueues: what comes after these is counted under "other". The
// series of a topic begin at 0 when its topology is declared or a subscription begins to consume,
// those of a handler with its first call: so an alert on an increase sees the first dead letter as
// well.
//
// Each call of a handler counts in amqpretry_calls_total, also those that are tried again at once.
// In amqpretry_attempts_until_success these are part of one attempt, see retry.Attempt, and
// postponing uses none up.
package metrics
