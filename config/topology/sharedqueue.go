package topology

import (
	"fmt"
)

// SharedQueueError is returned by Subscribe when two topics share a queue under different policies: a message does not
// say for which topic it is in the queue, so only one policy can hold.
type SharedQueueError struct {
	// Queue is the name of the queue.
	Queue string
	// Topics are those that share it.
	Topics [2]string
}

func (e *SharedQueueError) Error() string {
	if e.Topics[0] == e.Topics[1] {
		return fmt.Sprintf("queue %q of topic %q is used under two policies, that of a group and another one: give "+
			"both the same policy, or each its own queue (Options.GroupQueue, Config.Queue.GenerateName)",
			e.Queue, e.Topics[0])
	}

	return fmt.Sprintf(
		"topics %q and %q share queue %q under different policies: give both the same policy, or each its own queue "+
			"(Config.Queue.GenerateName)",
		e.Topics[0], e.Topics[1], e.Queue,
	)
}

// SharedByGroupsError is returned by Subscribe when two groups share a queue, or a group and a subscriber without one for
// another topic: each message would reach only one of them.
type SharedByGroupsError struct {
	// Queue is the name of the queue.
	Queue string
	// Groups are those that share it, for the topics of the same index; empty without a group.
	Groups, Topics [2]string
}

func (e *SharedByGroupsError) Error() string {
	return fmt.Sprintf("%s (topic %q) and %s (topic %q) share queue %q, so a message would reach only one of them: "+
		"let Options.GroupQueue give each its own", groupName(e.Groups[0]), e.Topics[0], groupName(e.Groups[1]),
		e.Topics[1], e.Queue)
}

func groupName(group string) string {
	if group == "" {
		return "a subscriber without a group"
	}

	return fmt.Sprintf("group %q", group)
}
