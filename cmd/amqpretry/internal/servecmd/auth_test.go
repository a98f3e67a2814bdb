package servecmd

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
)

func users(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))

	return path
}

func nobodyTold(string, string, bool) {}

func hash(t *testing.T, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	require.NoError(t, err)

	return string(hash)
}

func TestBasic(t *testing.T) {
	path := users(t, "# people\n\nada:"+hash(t, "a:1")+"\nbob:"+hash(t, "b2")+"\n")
	o := options{auth: "basic:" + path, role: "metadata", grants: []string{"ada=delete"}}
	authorize, err := o.authorizer(nobodyTold)
	require.NoError(t, err)

	ask := func(name, password string) (dlqweb.User, dlqweb.Role, error) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.SetBasicAuth(name, password)
		return authorize(r)
	}
	for range 2 { // the second time from memory
		user, role, err := ask("ada", "a:1")
		require.NoError(t, err)
		assert.Equal(t, dlqweb.User("ada"), user)
		assert.Equal(t, dlqweb.RoleDelete, role)
	}
	_, role, err := ask("bob", "b2")
	require.NoError(t, err)
	assert.Equal(t, dlqweb.RoleMetadata, role)
	for _, wrong := range [][2]string{{"ada", "b2"}, {"ada", ""}, {"", ""}, {"eve", "a:1"}} {
		_, _, err := ask(wrong[0], wrong[1])
		assert.ErrorIs(t, err, dlqweb.ErrUnauthenticated, wrong)
	}
	_, _, err = authorize(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	assert.ErrorIs(t, err, dlqweb.ErrUnauthenticated)
}

func TestUsersThatCannotBeRead(t *testing.T) {
	for text, want := range map[string]string{
		"": "it has no users", "# nobody\n": "it has no users", "ada\n": ":1: wanted NAME:HASH",
		":" + hash(t, "x"): ":1: wanted NAME:HASH", "ada:secret\n": `the hash of "ada" is not one of bcrypt`,
		"ada:" + hash(t, "x") + "\nada:" + hash(t, "y"): `:2: the user "ada" is there twice`,
	} {
		_, err := readUsers(users(t, text))
		assert.ErrorContains(t, err, want)
	}
	_, err := options{auth: "basic:/nowhere"}.authorizer(nobodyTold)
	assert.ErrorContains(t, err, "--auth basic: open /nowhere")
}

func TestHeaderOfAProxy(t *testing.T) {
	o := options{auth: "header:X-User", proxies: []string{"10.0.0.2", "fd00::/8"}, grants: []string{"ada=replay"}}
	authorize, err := o.authorizer(nobodyTold)
	require.NoError(t, err)
	ask := func(from string, names ...string) (dlqweb.User, dlqweb.Role, error) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = from
		for _, name := range names {
			r.Header.Add("X-User", name)
		}
		return authorize(r)
	}
	for _, from := range []string{"10.0.0.2:1234", "[fd00::1]:1234", "[::ffff:10.0.0.2]:1234"} {
		user, role, err := ask(from, "ada")
		require.NoError(t, err, from)
		assert.Equal(t, dlqweb.User("ada"), user)
		assert.Equal(t, dlqweb.RoleReplay, role)
	}
	_, role, err := ask("10.0.0.2:1", "bob")
	require.NoError(t, err)
	assert.Equal(t, dlqweb.RoleView, role)
	for _, from := range []string{"10.0.0.3:1234", "127.0.0.1:1234", "[fe80::1]:1"} {
		_, _, err = ask(from, "ada")
		assert.ErrorContains(t, err, "is no --trusted-proxy")
		assert.NotErrorIs(t, err, dlqweb.ErrUnauthenticated)
	}
	_, _, err = ask("10.0.0.2:1")
	assert.ErrorIs(t, err, dlqweb.ErrUnauthenticated)
	_, _, err = ask("10.0.0.2:1", "ada", "eve")
	assert.ErrorIs(t, err, dlqweb.ErrUnauthenticated, "a client may have set the other one")
}

// A page of another site whose name leads to this machine is refused, and so is what a reverse
// proxy on this machine passes on.
func TestOnlyLocal(t *testing.T) {
	handler := handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	}), options{}, true)
	ask := func(change func(*http.Request)) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Host = "127.0.0.1:8672"
		change(r)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	for host, want := range map[string]int{
		"localhost:8672": 200, "127.0.0.1:8672": 200, "[::1]:8672": 200, "127.9.9.9": 200, "localhost": 200,
		"evil.example:8672": 403, "127.0.0.1.evil.example": 403, "10.0.0.1:8672": 403, "": 403, "localhost.evil": 403,
	} {
		assert.Equal(t, want, ask(func(r *http.Request) { r.Host = host }).Code, host)
	}
	// nginx with no more than proxy_pass
	refused := ask(func(r *http.Request) { r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.0", 1, 0 })
	assert.Equal(t, http.StatusForbidden, refused.Code)
	assert.Contains(t, refused.Body.String(), "Start it with --auth")
	for header, value := range map[string]string{
		"X-Forwarded-For": "", "x-forwarded-host": "a", "X-Forwarded-Proto": "https", "X-Real-IP": "10.0.0.1",
		"Forwarded": "for=10.0.0.1", "Via": "1.1 proxy", "Origin": "https://console.example",
	} {
		assert.Equal(t, http.StatusForbidden, ask(func(r *http.Request) { r.Header.Set(header, value) }).Code, header)
	}
	for _, origin := range []string{"null", "http://127.0.0.1.evil.example", "%"} {
		answer := ask(func(r *http.Request) { r.Header.Set("Origin", origin) })
		assert.Equal(t, http.StatusForbidden, answer.Code, origin)
	}
	assert.Equal(t, http.StatusOK, ask(func(r *http.Request) { r.Header.Set("Origin", "http://localhost:8672") }).Code)
}

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		o        options
		loopback bool
		want     string
	}{
		"loopback":             {options{}, true, ""},
		"others, without auth": {options{listen: ":8672"}, false, "users must sign in"},
		"basic without TLS":    {options{auth: "basic:f"}, false, "sends passwords"},
		"basic on loopback":    {options{auth: "basic:f"}, true, ""},
		"basic with TLS":       {options{auth: "basic:f", tlsCert: "c"}, false, ""},
		"basic by permission":  {options{auth: "basic:f", plaintext: true}, false, ""},
		"header":               {options{auth: "header:X", proxies: []string{"10.0.0.2"}}, false, ""},
		"header of anybody":    {options{auth: "header:X"}, false, "needs --trusted-proxy"},
		"basic and a proxy": {options{auth: "basic:f", proxies: []string{"10.0.0.2"}}, true,
			"is for --auth header"},
		"something else":         {options{auth: "ldap:x"}, true, "must be basic:FILE or header:NAME"},
		"nothing behind a colon": {options{auth: "basic:"}, true, "must be basic:FILE or header:NAME"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.o.check(test.loopback)
			if test.want == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, test.want)
		})
	}
	for _, o := range []options{
		{role: "root"}, {auth: "header:X", grants: []string{"ada"}}, {auth: "header:X", grants: []string{"ada=king"}},
		{grants: []string{"ada=view"}}, {auth: "header:X", proxies: []string{"proxy.example"}},
	} {
		_, err := o.authorizer(nobodyTold)
		assert.Error(t, err, o)
	}
	r, err := options{}.roles()
	require.NoError(t, err)
	assert.Equal(t, dlqweb.RoleDelete, r.of("anybody"))
}

// Browsers are asked for a password only where there are passwords.
func TestChallenge(t *testing.T) {
	for auth, want := range map[string]string{
		"basic:users": `Basic realm="Dead letters", charset="UTF-8"`, "header:X-User": "",
	} {
		w := httptest.NewRecorder()
		handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
		}), options{auth: auth}, true).ServeHTTP(w,
			httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
		assert.Equal(t, http.StatusUnauthorized, w.Code)
		assert.Equal(t, want, w.Header().Get("WWW-Authenticate"), auth)
	}
}
