package dlqweb_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// schema is as much of a JSON Schema as the document uses.
type schema struct {
	Ref        string             `json:"$ref"`
	Type       any                `json:"type"`
	Properties map[string]*schema `json:"properties"`
	Required   []string           `json:"required"`
	Items      *schema            `json:"items"`
	Additional any                `json:"additionalProperties"`
	Enum       []any              `json:"enum"`
}

type document struct {
	OpenAPI string `json:"openapi"`
	Paths   map[string]map[string]struct {
		OperationID string `json:"operationId"`
		Responses   map[string]struct {
			Content map[string]struct {
				Schema *schema `json:"schema"`
			} `json:"content"`
		} `json:"responses"`
	} `json:"paths"`
	Security   []map[string][]string `json:"security"`
	Components struct {
		SecuritySchemes map[string]struct{ Type, Scheme, In, Name string } `json:"securitySchemes"`

		Schemas map[string]*schema `json:"schemas"`
	} `json:"components"`
}

// check reports what in a value is not as the schema has it, and what the schema does not have.
func (d document) check(t *testing.T, path string, s *schema, value any) {
	t.Helper()
	if s.Ref != "" {
		s = d.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
		require.NotNil(t, s, path)
	}
	if len(s.Enum) > 0 {
		assert.Contains(t, s.Enum, value, path)
	}
	types, _ := s.Type.([]any)
	if one, ok := s.Type.(string); ok {
		types = []any{one}
	}
	is := map[bool]string{true: "integer", false: "number"}
	var found string
	switch v := value.(type) {
	case nil:
		found = "null"
	case bool:
		found = "boolean"
	case string:
		found = "string"
	case float64:
		found = is[v == float64(int64(v))]
	case []any:
		found = "array"
		for _, element := range v {
			d.check(t, path+"[]", s.Items, element)
		}
	case map[string]any:
		found = "object"
		for _, name := range s.Required {
			assert.Contains(t, v, name, path)
		}
		for name, member := range v {
			switch of := s.Properties[name]; {
			case of != nil:
				d.check(t, path+"."+name, of, member)
			case s.Properties != nil && s.Additional == nil:
				t.Errorf("%s.%s is not in the document", path, name)
			}
		}
	}
	assert.Contains(t, types, found, path)
}

// Every answer is as the document says, and the document has every route.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	f := startDelayed(t, nil)
	f.fill(0, 60)
	f.retry("waits", time.Hour)
	f.Has(f.main+".retry.1h", 1)
	a := f.get("/api/v1/openapi.json")
	require.Equal(t, http.StatusOK, a.Status)
	var d document
	require.NoError(t, json.Unmarshal([]byte(a.Body), &d))
	assert.Equal(t, "3.1.0", d.OpenAPI)
	require.Len(t, d.Security, 3, "or none, on a loopback address")
	for _, security := range d.Security {
		for scheme := range security {
			assert.Contains(t, d.Components.SecuritySchemes, scheme)
		}
	}
	assert.Equal(t, "basic", d.Components.SecuritySchemes["basic"].Scheme)

	checked := map[string]bool{}
	check := func(method, path, template, body string, status int, code string) map[string]any {
		t.Helper()
		a := f.send(method, "/api/v1"+path, "application/json", body)
		require.Equal(t, status, a.Status, a.Body)
		operation, ok := d.Paths[template][strings.ToLower(method)]
		require.True(t, ok, "%s %s", method, template)
		kind := a.Header.Get("Content-Type")
		content, ok := operation.Responses[code].Content[kind]
		require.True(t, ok, "%s %s: %s %s", method, template, code, kind)
		var value any
		require.NoError(t, json.Unmarshal([]byte(a.Body), &value))
		d.check(t, template, content.Schema, value)
		checked[operation.OperationID] = true
		object, _ := value.(map[string]any)

		return object
	}
	queue := "/queues/" + f.dead
	check("GET", "/queues", "/queues", "", 200, "200")
	check("GET", queue, "/queues/{queue}", "", 200, "200")
	check("GET", queue+"?reason=bored", "/queues/{queue}", "", 400, "default")
	check("GET", queue+"/dead-letters", "/queues/{queue}/dead-letters", "", 200, "200")
	check("GET", queue+"/dead-letters?after=50&reason=exhausted", "/queues/{queue}/dead-letters", "", 200, "200")
	check("GET", queue+"/dead-letters/uuid-7", "/queues/{queue}/dead-letters/{uuid}", "", 200, "200")
	check("GET", queue+"/dead-letters/nobody", "/queues/{queue}/dead-letters/{uuid}", "", 404, "default")
	list := check("GET", queue+"/dead-letters?limit=1", "/queues/{queue}/dead-letters", "", 200, "200")
	at := fmt.Sprint(queue, "/snapshots/", list["snapshot"], "/dead-letters/7")
	check("GET", at, "/queues/{queue}/snapshots/{snapshot}/dead-letters/{position}", "", 200, "200")
	waiting := check("GET", queue+"/waiting?due-after=10m", "/queues/{queue}/waiting", "", 200, "200")
	assert.Len(t, waiting["messages"], 1)
	check("GET", queue+"/waiting?limit=0", "/queues/{queue}/waiting", "", 400, "default")
	check("GET", "/openapi.json", "/openapi.json", "", 200, "200")

	plan := `{"kind":"replay","queue":"` + f.dead + `","filter":{"uuid":["uuid-1"]},"edit":{"body":"{}",` +
		`"set_headers":{"tenant":{"type":"int64","value":"9"}},"remove_headers":["x"]}}`
	id, _ := check("POST", "/runs", "/runs", plan, 201, "201")["id"].(string)
	f.await(id, "ready")
	check("GET", "/runs/"+id, "/runs/{id}", "", 200, "200")
	check("POST", "/runs/"+id+"/confirm", "/runs/{id}/confirm", "", 200, "200")
	f.await(id, "done")
	check("GET", "/runs", "/runs", "", 200, "200")
	check("GET", "/runs?limit=0", "/runs", "", 400, "default")
	check("GET", "/runs?limit=1", "/runs", "", 200, "200")
	undo, _ := check("POST", "/runs/"+id+"/undo", "/runs/{id}/undo", "", 201, "201")["id"].(string)
	f.await(undo, "ready")
	assert.Equal(t, "discarded", check("DELETE", "/runs/"+undo, "/runs/{id}", "", 200, "200")["state"])
	file := f.get("/api/v1/runs/" + id + "/file")
	require.Equal(t, http.StatusOK, file.Status)
	assert.Equal(t, "application/octet-stream", file.Header.Get("Content-Type"))
	assert.Equal(t, 1, strings.Count(file.Body, "\n"))
	checked["getRunFile"] = true
	imported := f.send("POST", "/api/v1"+queue+"/imports", "application/jsonl", file.Body)
	require.Equal(t, http.StatusCreated, imported.Status, imported.Body)
	address, err := url.Parse("/api/v1" + queue + "/imports")
	require.NoError(t, err)
	address, err = address.Parse(imported.Header.Get("Location"))
	require.NoError(t, err)
	var planned map[string]any
	f.json(imported, &planned)
	assert.Equal(t, fmt.Sprint("/api/v1/runs/", planned["id"]), address.Path)
	assert.Equal(t, 1, f.await(fmt.Sprint(planned["id"]), "ready").Plan.Matched)
	d.check(t, "/queues/{queue}/imports", d.Components.Schemas["Run"], planned)
	checked["planImport"] = true
	check("POST", queue+"/imports", "/queues/{queue}/imports", "{}", 415, "default")
	check("POST", "/runs", "/runs", `{"kind":"replay","queue":"`+f.dead+`","color":"red"}`, 400, "default")
	check("POST", "/runs", "/runs", `{"kind":"boil","queue":"`+f.dead+`"}`, 400, "default")

	var all []string
	for _, operations := range d.Paths {
		for _, operation := range operations {
			all = append(all, operation.OperationID)
		}
	}
	assert.ElementsMatch(t, all, slices.Collect(maps.Keys(checked)))
}
