package httpapi

import "context"

// Node is a node of the cluster. What is nil was not in the answer, as of a node that is down.
type Node struct {
	Name        string   `json:"name"`
	Running     bool     `json:"running"`
	MemoryAlarm *bool    `json:"mem_alarm"`
	DiskAlarm   *bool    `json:"disk_free_alarm"`
	Partitions  []string `json:"partitions"`
}

// Nodes lists the nodes of the cluster.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	query := "?columns=name,running,mem_alarm,disk_free_alarm,partitions"
	return list[Node](ctx, c, []string{"nodes"}, query, "the tag monitoring or administrator")
}

// FeatureFlag is a feature of the cluster, which is on or not.
type FeatureFlag struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

// FeatureFlags lists the feature flags of the cluster.
func (c *Client) FeatureFlags(ctx context.Context) ([]FeatureFlag, error) {
	return list[FeatureFlag](ctx, c, []string{"feature-flags"}, "", "the tag administrator (before RabbitMQ 4.0)")
}

// Limits are those of the virtual host by name, such as max-queues. One that is not set is missing,
// or negative.
func (c *Client) Limits(ctx context.Context) (map[string]int64, error) {
	type set struct {
		VHost string           `json:"vhost"`
		Value map[string]int64 `json:"value"`
	}
	all, err := list[set](ctx, c, []string{"vhost-limits", c.vhost}, "", "")
	if err != nil {
		return nil, err
	}
	limits := map[string]int64{}
	for _, of := range all {
		if of.VHost != c.vhost {
			return nil, c.elsewhere("limits", of.VHost, "")
		}
		limits = of.Value
	}
	return limits, nil
}
