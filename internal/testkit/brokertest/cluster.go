package brokertest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Cluster is a private cluster of three brokers, of one test. A node is a [Broker]: what happens to
// it is seen by the others.
type Cluster struct {
	Nodes [3]*Broker
	Dir   string

	all *Broker // commands for all of them
}

// StartCluster starts a private cluster, which takes some 20 seconds, and removes it when the test
// ends. It needs a rabbitmq-server on this machine.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	checkName(t)
	dir, err := os.MkdirTemp(os.Getenv("BROKER_DIR"), "amqpretry-test-") //nolint:usetesting // as in start
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Dir: dir, all: &Broker{Dir: dir, t: t, script: script(t)}}
	t.Cleanup(func() { c.all.run("rm", dir) })

	uris := strings.Fields(c.all.run("cluster", dir))
	if len(uris) != len(c.Nodes) {
		t.Fatalf("scripts/broker cluster printed %d URIs, wanted %d", len(uris), len(c.Nodes))
	}
	for i, uri := range uris {
		c.Nodes[i] = &Broker{URI: uri, Dir: filepath.Join(dir, strconv.Itoa(i+1)), t: t, script: c.all.script}
	}

	return c
}

// Start starts all nodes that do not run, at the same time: after a whole cluster has ended, none
// comes up alone.
func (c *Cluster) Start() { c.all.t.Helper(); c.all.run("start", c.Dir) }

// Cut cuts a node off from the other two. Its clients, and theirs, notice only what the brokers do
// about it.
func (c *Cluster) Cut(node int) { c.all.t.Helper(); c.all.run("cut", c.Dir, strconv.Itoa(node+1)) }

// Heal undoes all cuts.
func (c *Cluster) Heal() { c.all.t.Helper(); c.all.run("heal", c.Dir) }
