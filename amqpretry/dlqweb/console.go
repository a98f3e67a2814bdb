package dlqweb

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/amqpretry/watermill-retry/amqpretry/dlq"
	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb/internal/snapshot"
	"github.com/amqpretry/watermill-retry/internal/connection"
)

// Console is the web console. It is an [http.Handler].
type Console struct {
	config  Config
	vhost   string
	handler http.Handler

	ctx     context.Context // of what goes on in the background
	cancel  context.CancelFunc
	running sync.WaitGroup

	opening chan struct{} // who has put something in it may use opened
	opened  *dlq.Client

	snapshots *snapshots
	runs      *runs
	refusals  refusals
	sampler   *sampler
	uploads   uploads
}

// New makes a console. It connects when it is first asked, and keeps going until it is closed.
func New(config Config) (*Console, error) {
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	uri, err := connection.ParseURI(config.Broker.URI)
	if err != nil {
		return nil, err
	}
	folder := config.Folder
	if !config.acts() {
		folder = ""
	}
	journal, err := openJournal(folder)
	if err != nil {
		return nil, err
	}

	c := &Console{config: config, vhost: cmp.Or(config.Broker.Management.VHost, uri.Vhost, "/"),
		opening: make(chan struct{}, 1), refusals: newRefusals(),
		uploads: uploads{ofUser: map[User]int{}, freed: make(chan struct{})}}
	told := c.config.Broker.OnBlocked
	c.config.Broker.OnBlocked = func(why error) {
		c.runs.blocked(why)
		if told != nil {
			told(why)
		}
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.snapshots = &snapshots{console: c, files: &snapshot.Files{Folder: folder, Most: mostFiles},
		reads: make(chan struct{}, mostReads)}
	c.runs = &runs{console: c, journal: journal}
	c.sampler = &sampler{console: c, visited: make(chan struct{}, 1),
		first: make(chan struct{})}
	if err := c.runs.restore(); err != nil {
		journal.close()
		return nil, err
	}
	c.handler = c.routes()
	c.running.Go(func() { c.sampler.run(c.ctx) })
	if config.OnNewCause != nil {
		causes := &causes{console: c, seen: map[string]lastRead{}, known: map[string]map[string]bool{}}
		c.running.Go(func() { causes.run(c.ctx) })
	}
	c.running.Go(func() { c.runs.keepExpiring(c.ctx) })

	return c, nil
}

// Close stops the runs, waits for what they have on its way, and closes the connections when all
// messages that were read are back in their queues, which takes up to Config.Broker.OrderTime. A
// run that was stopped this way is told as stopped when the console is started again. Close what
// serves the console first, so that no request is on its way.
func (c *Console) Close() error {
	c.cancel()
	c.running.Wait()
	c.opening <- struct{}{}
	defer func() { <-c.opening }()
	if c.opened != nil {
		_ = c.opened.Close()
	}
	c.snapshots.close()
	c.runs.journal.close()

	return nil
}

const (
	// mostForm is how much of a form or a JSON object is read; mostUpload how much of a file.
	mostForm   = 20 << 20
	mostUpload = 8 << 30
	// requestTime is how long a request may take, but for files that go up or down.
	requestTime = 60 * time.Second
)

// ServeHTTP serves the console.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "+
		"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")

	body := c.newBody(w, r)
	defer body.end()
	if c.ctx.Err() != nil {
		c.answer(w, r, visitor{}, &problem{Status: http.StatusServiceUnavailable, Title: "The console was closed",
			Do: "Open it again when the service is back."})
		return
	}
	inside, below := strings.CutPrefix(r.URL.Path, c.config.Prefix)
	switch {
	case !below || inside != "" && inside[0] != '/':
		http.NotFound(w, r)
		return
	case inside == "": // relative links need the slash
		h.Set("Location", "./"+url.PathEscape(lastSegment(r))+"/")
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	escaped := r.URL.EscapedPath()
	if escaped != "/" && path.Clean(escaped) != strings.TrimSuffix(escaped, "/") {
		http.NotFound(w, r) // a redirect would be to an absolute path, and so leave a prefix that a proxy has cut off
		return
	}
	inner := r.Clone(r.Context())
	if body != nil {
		inner.Body = body
	}
	inner.URL.Path = inside
	inner.URL.RawPath = strings.TrimPrefix(r.URL.RawPath, c.config.Prefix)
	c.handler.ServeHTTP(w, inner)
}

// lastSegment is that of the path that the client has asked for, which http.StripPrefix leaves in
// RequestURI.
func lastSegment(r *http.Request) string {
	asked := r.URL.Path
	if uri, err := url.ParseRequestURI(r.RequestURI); err == nil {
		asked = uri.Path
	}

	return path.Base(asked)
}

// methodsOf are the methods that a path has; none for a path that is not there.
func methodsOf(mux *http.ServeMux, r *http.Request) []string {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
		with := r.Clone(r.Context())
		with.Method = method
		if _, pattern := mux.Handler(with); pattern != "/" {
			allowed = append(allowed, method)
		}
	}

	return allowed
}

// routes are all there is. What changes something is not there where the console only shows.
func (c *Console) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /static/{file}", c.static)
	page := func(pattern string, do func(http.ResponseWriter, *http.Request, visitor) error) {
		mux.Handle(pattern, c.html(do))
	}
	api := func(pattern string, do func(*http.Request, visitor) (any, error)) {
		mux.Handle(pattern, c.json(do))
	}

	page("GET /{$}", c.pageOverview)
	page("GET /queue", withKeys(c.pageQueue, queueKeys...))
	page("GET /waiting", withKeys(c.pageQueue, waitingKeys...))
	page("GET /message", withKeys(c.pageMessage, messageKeys...))
	page("GET /body", c.getBody)
	api("GET /api/v1/queues", c.apiQueues)
	api("GET /api/v1/queues/{queue}", c.apiQueue)
	api("GET /api/v1/queues/{queue}/waiting", c.apiWaiting)
	api("GET /api/v1/queues/{queue}/dead-letters", c.apiDeadLetters)
	api("GET /api/v1/queues/{queue}/dead-letters/{uuid}", c.apiDeadLetter)
	api("GET /api/v1/queues/{queue}/snapshots/{snapshot}/dead-letters/{position}", c.apiDeadLetter)
	mux.Handle("GET /api/v1/openapi.json", c.openAPI())
	if c.config.acts() {
		page("GET /runs", c.pageRuns)
		page("GET /run", c.pageRun)
		page("GET /file", c.getFile)
		page("GET /plan", withKeys(c.pagePlan, planKeys...))
		page("POST /plan", c.postPlan)
		page("POST /diff", c.postDiff)
		page("POST /confirm", c.postConfirm)
		page("POST /stop", postRun(c.runs.end))
		page("POST /undo", postRun(c.undoRun))
		api("GET /api/v1/runs", c.apiRuns)
		api("POST /api/v1/runs", c.apiPlan)
		api("POST /api/v1/queues/{queue}/imports", c.apiImport)
		api("GET /api/v1/runs/{id}", c.apiRun)
		page("GET /api/v1/runs/{id}/file", c.getFile)
		api("POST /api/v1/runs/{id}/confirm", apiOf(c.runs.confirm))
		api("POST /api/v1/runs/{id}/undo", c.apiUndo)
		api("DELETE /api/v1/runs/{id}", apiOf(c.runs.end))
	}
	mux.Handle("/", c.html(func(w http.ResponseWriter, r *http.Request, _ visitor) error {
		if allowed := methodsOf(mux, r); len(allowed) > 0 {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			return &problem{Status: http.StatusMethodNotAllowed, Title: "This path does not take " + cut(r.Method, 10),
				Do: "Use " + strings.Join(allowed, " or ") + "."}
		}
		// The links of a page are relative to the console's first page: all pages lie beside it.
		if strings.Count(r.URL.Path, "/") > 1 && !strings.HasPrefix(r.URL.Path, "/api/") {
			http.NotFound(w, r)
			return nil
		}
		return notFound("This page")
	}))

	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.answer(w, r, visitor{}, &problem{Status: http.StatusForbidden, Title: "This request came from another site",
			Detail: "The console takes forms from its own pages only.",
			Do: "Open the console itself. Behind a reverse proxy, see that it passes the headers Host, Origin and " +
				"Sec-Fetch-Site on."})
	}))

	return protection.Handler(mux)
}
