package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/amqpretry"
	"github.com/amqpretry/watermill-retry/amqpretry/amqpv2"
	"github.com/amqpretry/watermill-retry/amqpretry/health"
)

type probe struct {
	HTTPGet struct {
		Path string
		Port int
	} `yaml:"httpGet"`
}

// The manifest's times and paths are those of the program, and the page of the docs has the same
// manifest.
func TestManifest(t *testing.T) {
	file, err := os.ReadFile("kubernetes.yaml")
	require.NoError(t, err)
	var manifest struct {
		Spec struct {
			Template struct {
				Spec struct {
					Grace      int `yaml:"terminationGracePeriodSeconds"`
					Containers []struct {
						Readiness probe `yaml:"readinessProbe"`
						Liveness  probe `yaml:"livenessProbe"`
					}
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(file, &manifest))
	pod := manifest.Spec.Template.Spec
	assert.Greater(t, time.Duration(pod.Grace)*time.Second, handlersEnd+routerEnds)
	assert.Greater(t, routerEnds, handlersEnd)

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	retrier, err := amqpv2.New(amqp.NewDurableQueueConfig("amqp://localhost"), amqpretry.Options{})
	require.NoError(t, err)
	get := func(path string) int {
		answer := httptest.NewRecorder()
		health.Handler(retrier, router).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		return answer.Code
	}
	require.Len(t, pod.Containers, 1)
	assert.Equal(t, http.StatusServiceUnavailable, get(pod.Containers[0].Readiness.HTTPGet.Path), "does not run yet")
	assert.Equal(t, http.StatusOK, get(pod.Containers[0].Liveness.HTTPGet.Path))

	page, err := os.ReadFile("../../docs/how-to/kubernetes.md")
	require.NoError(t, err)
	_, block, found := strings.Cut(string(page), "```yaml kubernetes\n")
	require.True(t, found)
	block, _, _ = strings.Cut(block, "```")
	_, same, found := strings.Cut(string(file), "\n") // without the comment
	require.True(t, found)
	assert.Equal(t, same, block)
}
