package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

func lookVersion(f Facts) []Finding {
	switch {
	case f.Version == "":
		return []Finding{{Severity: Unseen, Object: broker, Found: "not seen: the version", Means: "the broker does " +
			"not report it"}}
	case !rabbitmq.IsSupported(f.Version):
		return []Finding{{Severity: Problem, Object: broker, Found: "RabbitMQ " + f.Version + ", wanted 3.10 or later",
			Means: "this version has no at-least-once dead-lettering, so waiting messages can be lost on their return",
			Fix:   "# upgrade, one series at a time: https://www.rabbitmq.com/docs/upgrade"}}
	}
	return nil
}

func lookFeatures(f Facts) []Finding {
	if rabbitmq.HasAllFlags(f.Version) { // there they cannot be off
		return nil
	}
	if !f.Flags.Known {
		return f.cannotSee(blind{f.Flags.Why: nil}, "feature flags")
	}
	var found []Finding
	for _, need := range []struct{ flag, for_ string }{
		{"quorum_queue", "quorum queues, which retry queues and dead-letter queues are"},
		{"stream_queue", "at-least-once dead-lettering, which retry queues use to return messages"},
	} {
		for _, flag := range f.Flags.Value {
			if flag.Name == need.flag && flag.State != "enabled" {
				found = append(found, Finding{Severity: Problem, Object: broker,
					Found: fmt.Sprintf("the feature flag %s is %s", flag.Name, flag.State),
					Means: "the broker has no " + need.for_,
					Fix:   "rabbitmqctl enable_feature_flag " + flag.Name})
			}
		}
	}
	return found
}

func lookAlarms(f Facts) []Finding {
	var found []Finding
	const means = "during the alarm the whole cluster accepts no messages: publishers wait, and failed messages " +
		"stay unacknowledged. Nothing is lost"
	for _, n := range f.Nodes.Value {
		if n.MemoryAlarm != nil && *n.MemoryAlarm {
			found = append(found, Finding{Severity: Problem, Object: broker, Found: "memory alarm on node " + n.Name,
				Means: means,
				Fix: "# Find what uses the memory: rabbitmq-diagnostics memory_breakdown --unit MB\n" +
					"# Consume, add memory, or raise the limit (until the next restart):\n" +
					"rabbitmqctl --node " + shell.Quote(n.Name) + " set_vm_memory_high_watermark 0.6"})
		}
		if n.DiskAlarm != nil && *n.DiskAlarm {
			found = append(found, Finding{Severity: Problem, Object: broker, Found: "disk alarm on node " + n.Name,
				Means: means,
				Fix: "# Free disk space there, or lower the limit (until the next restart):\n" +
					"rabbitmqctl --node " + shell.Quote(n.Name) + " set_disk_free_limit 500MB"})
		}
	}
	switch {
	case len(found) > 0:
		return found
	case f.Blocked.Known && f.Blocked.Value != "":
		return []Finding{{Severity: Problem, Object: broker, Found: "the broker has blocked the connection: " +
			f.Blocked.Value, Means: means,
			Fix: "rabbitmq-diagnostics alarms\nrabbitmq-diagnostics memory_breakdown --unit MB"}}
	case !f.Blocked.Known && !f.Nodes.Known:
		return f.cannotSee(blind{f.Blocked.Why: nil}, "alarms")
	}
	return nil
}

func lookNodes(f Facts) []Finding {
	if !f.Nodes.Known {
		return f.cannotSee(blind{f.Nodes.Why: nil}, "the nodes of the cluster")
	}
	var found []Finding
	for _, n := range f.Nodes.Value {
		if !n.Running {
			found = append(found, Finding{Severity: Warning, Object: broker, Found: fmt.Sprintf("node %s is down",
				n.Name),
				Means: "quorum queues need a majority of their nodes. Classic queues of that node are not available",
				Fix:   "# on that machine:\nrabbitmq-server -detached"})
		}
		if len(n.Partitions) > 0 {
			found = append(found, Finding{Severity: Problem, Object: broker,
				Found: fmt.Sprintf("node %s is partitioned from %s", n.Name, strings.Join(n.Partitions, ", ")),
				Means: "the cluster is split: declarations and classic queues can differ between the two sides",
				Fix: "# restart the side whose changes you give up: " +
					"https://www.rabbitmq.com/docs/partitions\nrabbitmqctl cluster_status"})
		}
	}
	return found
}

// maxQueues is the limit of a virtual host that keeps retry queues from being declared.
const maxQueues = "max-queues"

func lookLimits(f Facts) []Finding {
	if !f.Limits.Known || !f.All.Known {
		why := f.Limits.Why
		if f.Limits.Known {
			why = f.All.Why
		}
		return f.cannotSee(blind{why: nil}, "limits of the virtual host")
	}
	limit, set := f.Limits.Value[maxQueues]
	if !set || limit < 0 {
		return nil
	}
	missing := 0
	for _, o := range f.objects() {
		if exists := f.exists(o.Name); exists.Known && !exists.Value {
			missing++
		}
	}
	have := len(f.All.Value)
	if int64(have+missing) <= limit {
		return nil
	}
	limits := maps.Clone(f.Limits.Value)
	limits[maxQueues] = int64(have + missing)
	return []Finding{{Severity: Problem, Object: broker,
		Found: fmt.Sprintf("the virtual host is limited to %d queues; it has %d, and %d are missing", limit,
			have, missing),
		Means: "services cannot declare them: Subscribe fails, or failed messages stay unacknowledged",
		Fix:   f.ctl("set_vhost_limits", shell.Quote(asJSON(limits)))}}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
