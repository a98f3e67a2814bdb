package doctor

import (
	"encoding/json"
	"maps"
	"strings"

	"github.com/amqpretry/watermill-retry/internal/rabbitmq"
	"github.com/amqpretry/watermill-retry/internal/shell"
)

func lookVersion(f Facts) []Finding {
	switch {
	case f.Version == "":
		return []Finding{f.says("version.unknown")}
	case !rabbitmq.IsSupported(f.Version):
		return []Finding{f.says("version.old")}
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
	for _, need := range []string{"quorum_queue", "stream_queue"} {
		for _, flag := range f.Flags.Value {
			if flag.Name == need && flag.State != "enabled" {
				found = append(found, f.says("features."+need, "flag", flag.Name, "state", flag.State))
			}
		}
	}
	return found
}

func lookAlarms(f Facts) []Finding {
	var found []Finding
	for _, n := range f.Nodes.Value {
		if n.MemoryAlarm != nil && *n.MemoryAlarm {
			found = append(found, f.says("alarms.memory", "node", n.Name))
		}
		if n.DiskAlarm != nil && *n.DiskAlarm {
			found = append(found, f.says("alarms.disk", "node", n.Name))
		}
	}
	switch {
	case len(found) > 0:
		return found
	case f.Blocked.Known && f.Blocked.Value != "":
		return []Finding{f.says("alarms.blocked", "why", f.Blocked.Value)}
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
			found = append(found, f.says("nodes.down", "node", n.Name))
		}
		if len(n.Partitions) > 0 {
			found = append(found, f.says("nodes.partition", "node", n.Name, "others", strings.Join(n.Partitions, ", ")))
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
	have, missing := len(f.All.Value), 0
	for _, o := range f.queues() {
		if gone(f.Exists(o.Name)) {
			missing++
		}
	}
	if !set || limit < 0 || int64(have+missing) <= limit {
		return nil
	}
	limits := maps.Clone(f.Limits.Value)
	limits[maxQueues] = int64(have + missing)
	return []Finding{f.says("limits.queues", "limit", limit, "have", have, "missing", missing,
		"fix", f.Ctl("set_vhost_limits", shell.Quote(asJSON(limits))))}
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error() // impossible: texts and numbers
	}
	return string(text)
}
