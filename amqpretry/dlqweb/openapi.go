package dlqweb

import (
	_ "embed"
	"net/http"
)

//go:embed openapi.json
var openAPI []byte

// openAPI serves the document of the API.
func (c *Console) openAPI() http.Handler {
	return c.html(func(w http.ResponseWriter, _ *http.Request, _ visitor) error {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(openAPI)

		return nil
	})
}
