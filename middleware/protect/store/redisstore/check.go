package redisstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Warning is a setting of a Redis server that makes it forget claims, marks or values.
type Warning struct {
	// Server is its address.
	Server string
	// Setting is its name in redis.conf, and Value what it has. The value is empty where it could
	// not be read.
	Setting, Value string
	// Effect is what can happen, and Advice what to set.
	Effect, Advice string
}

// String is the warning in one line.
func (w Warning) String() string {
	value := w.Value
	if value == "" {
		value = "(not readable)"
	}

	return fmt.Sprintf("%s: %s %s: %s; %s", w.Server, w.Setting, value, w.Effect, w.Advice)
}

// Check reads the settings of the server, or of each master of a cluster, and returns a warning for
// each one that makes it forget claims. A service can log them when it starts. It uses INFO, and
// CONFIG GET where that is allowed. It returns an error when INFO is not.
func Check(ctx context.Context, client redis.UniversalClient) ([]Warning, error) {
	var (
		mu       sync.Mutex
		warnings []Warning
	)
	check := func(ctx context.Context, c *redis.Client) error {
		found, err := checkServer(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		warnings = append(warnings, found...)

		return err
	}
	var err error
	switch c := client.(type) {
	case *redis.Client:
		err = check(ctx, c)
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, check)
	case *redis.Ring:
		err = c.ForEachShard(ctx, check)
	default:
		err = fmt.Errorf("unknown kind of client: %T", client)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot check the settings of Redis: %w; %s", err, advice(err))
	}
	slices.SortFunc(warnings, func(a, b Warning) int { return strings.Compare(a.String(), b.String()) })

	return warnings, nil
}

func checkServer(ctx context.Context, c *redis.Client) ([]Warning, error) {
	info := map[string]string{}
	for _, section := range []string{"memory", "persistence", "replication"} {
		text, err := c.Info(ctx, section).Result()
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				info[name] = value
			}
		}
	}
	// Hosted servers often forbid CONFIG: what it alone knows stays empty.
	config := map[string]string{}
	for _, name := range []string{"appendfsync", "min-replicas-to-write"} {
		if values, err := c.ConfigGet(ctx, name).Result(); err == nil {
			config[name] = values[name]
		}
	}

	return judge(c.Options().Addr, info, config), nil
}

func judge(server string, info, config map[string]string) []Warning {
	var warnings []Warning
	warn := func(setting, value, effect, advice string) {
		warnings = append(warnings, Warning{server, setting, value, effect, advice})
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		warn("maxmemory-policy", policy, "Redis deletes claims and marks when its memory is full",
			"set it to noeviction")
	}
	if info["aof_enabled"] != "1" {
		warn("appendonly", "no", "after a crash Redis has forgotten everything since its last snapshot",
			"set it to yes")
	} else if sync := config["appendfsync"]; sync != "always" {
		warn("appendfsync", sync, "after a crash of the machine Redis may have forgotten the last seconds",
			"set it to always, or accept a few duplicates then")
	}
	if replicas := info["connected_slaves"]; replicas != "0" && replicas != "" {
		if least, ok := config["min-replicas-to-write"]; least == "0" || !ok {
			warn("min-replicas-to-write", least,
				"a master that is cut off still takes claims, which a failover forgets", "set it to 1 or more")
		}
	}
	if info["role"] == "slave" {
		warn("replicaof", info["master_host"]+" "+info["master_port"], "a replica takes no claims",
			"connect to the master: by a Sentinel or Cluster client, or its address")
	}

	return warnings
}
