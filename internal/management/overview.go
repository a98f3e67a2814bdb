package management

import (
	"context"
	"net/http"
)

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
	var nodes []Node
	query := "?columns=name,running,mem_alarm,disk_free_alarm,partitions"
	err := c.call(ctx, http.MethodGet, []string{"nodes"}, query, nil, &nodes, "the tag monitoring or administrator")
	return nodes, err
}

// FeatureFlag is a feature of the cluster, which is on or not.
type FeatureFlag struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

// FeatureFlags lists the feature flags of the cluster.
func (c *Client) FeatureFlags(ctx context.Context) ([]FeatureFlag, error) {
	var flags []FeatureFlag
	err := c.call(ctx, http.MethodGet, []string{"feature-flags"}, "", nil, &flags, "the tag administrator (before "+
		"RabbitMQ 4.0)")
	return flags, err
}

// Limits are those of the virtual host by name, such as max-queues. One that is not set is missing, or negative.
func (c *Client) Limits(ctx context.Context) (map[string]int64, error) {
	var all []struct {
		VHost string           `json:"vhost"`
		Value map[string]int64 `json:"value"`
	}
	if err := c.call(ctx, http.MethodGet, []string{"vhost-limits", c.vhost}, "", nil, &all, ""); err != nil {
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
