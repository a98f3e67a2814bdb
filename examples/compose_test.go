package examples

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func read(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("compose", file))
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, into), file)
}

// The files name each other's services, ports and paths. Docker is not needed to see that they fit.
func TestFilesFitTogether(t *testing.T) {
	t.Parallel()
	var compose struct {
		Services map[string]struct {
			Image   string
			Build   struct{ Context, Dockerfile string }
			Command []string
			Volumes []string
		}
	}
	read(t, "docker-compose.yaml", &compose)
	require.Len(t, compose.Services, 4)
	mounted := map[string]string{} // where a container has a file of this repository
	for name, service := range compose.Services {
		if service.Image != "" {
			_, tag, _ := strings.Cut(service.Image, ":")
			assert.NotContains(t, []string{"", "latest"}, tag, name)
		} else {
			assert.FileExists(t, filepath.Join("compose", service.Build.Context, service.Build.Dockerfile))
		}
		for _, volume := range service.Volumes {
			parts := strings.Split(volume, ":")
			require.Len(t, parts, 3, volume)
			assert.FileExists(t, filepath.Join("compose", parts[0]), "Docker would make it a folder")
			mounted[name+parts[1]] = parts[0]
		}
	}

	var prometheus struct {
		Rules  []string `yaml:"rule_files"`
		Scrape []struct {
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	read(t, mounted["prometheus/etc/prometheus/prometheus.yml"], &prometheus)
	for _, rules := range prometheus.Rules {
		assert.Contains(t, mounted, "prometheus/etc/prometheus/"+rules)
	}
	var targets []string
	for _, job := range prometheus.Scrape {
		for _, static := range job.Static {
			targets = append(targets, static.Targets...)
		}
	}
	assert.Equal(t, []string{"shop:2112", "rabbitmq:15692"}, targets)
	assert.Equal(t, []string{"-for", "24h", "-listen", ":2112"}, compose.Services["shop"].Command)

	var dashboards struct {
		Providers []struct{ Options struct{ Path string } }
	}
	read(t, mounted["grafana/etc/grafana/provisioning/dashboards/amqpretry.yaml"], &dashboards)
	require.Len(t, dashboards.Providers, 1)
	assert.Contains(t, mounted, "grafana"+dashboards.Providers[0].Options.Path+"/amqpretry.json")
	var sources struct {
		Sources []struct{ Type, URL string } `yaml:"datasources"`
	}
	read(t, mounted["grafana/etc/grafana/provisioning/datasources/amqpretry.yaml"], &sources)
	require.Len(t, sources.Sources, 1)
	assert.Equal(t, "http://prometheus:9090", sources.Sources[0].URL)
}
