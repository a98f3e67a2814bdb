package cli

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/config/topology"
)

const secret = "s3cret"

// addresses that cannot be read, or lead nowhere, each with the password.
var badAddresses = []string{
	"amqp://user:" + secret + "@127.0.0.1:1/", // nobody listens
	"amqp://user:12/" + secret + "@host",
	"amqp://user:" + secret + "#x@host",
	"amqp://user:" + secret + "?x@host",
	"amqp://user:" + secret + "%zz@host",
	"amqp://user:" + secret + "@host:port",
	"amqp://user:" + secret + "@host:99999999999",
	"amqp://user:" + secret + "@[::1",
	"amqp://user:" + secret + " x@host",
	"amqp://user:x\" " + secret + "@host",
	"amqp://user:" + secret + "\n@host",
	"amqp://user:" + secret + "\x00@host",
	"http://user:" + secret + "@host",
	"AMQP//user:" + secret + "@host",
	"user:" + secret + "@host",
	"amqps://user:" + secret + "@127.0.0.1:1/vhost?cacertfile=/nowhere",
	"amqp://:" + secret + "@127.0.0.1:1",
	"amqp://" + secret + ":@127.0.0.1:1",
	"amqp://user:" + secret + "@127.0.0.1:1/a/b",
	secret,
}

// All that a command can be told an address by, rightly or wrongly.
func TestCredentialsAreNeverShown(t *testing.T) {
	dial := func(s *Session, cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if _, err := Targets(args); err != nil {
				return err
			}
		}
		_, _, api := s.Management()
		_, policies := s.Policies()
		connection, err := s.Dial(cmd.Context())
		if err == nil {
			return connection.Close()
		}
		_, opened := s.DLQ(cmd.Context(), topology.Names{})

		return errors.Join(api, policies, err, opened)
	}
	for _, address := range badAddresses {
		for name, given := range map[string]struct {
			environ map[string]string
			args    []string
		}{
			"flag":            {nil, []string{"--uri", address}},
			"flag with =":     {nil, []string{"--uri=" + address}},
			"environment":     {map[string]string{EnvURI: address}, nil},
			"API":             {map[string]string{EnvURI: "amqp://127.0.0.1:1"}, []string{"--management-url", address}},
			"API environment": {map[string]string{EnvURI: "amqp://127.0.0.1:1", EnvManagement: address}, nil},
			"node":            {map[string]string{EnvURI: "amqp://127.0.0.1:1"}, []string{"--address", address}},
			"help":            {map[string]string{EnvURI: address, EnvManagement: address}, []string{"--help"}},
		} {
			w := newWorld(given.environ)
			w.run(t, command(dial), append([]string{"do", "--timeout", "5s"}, given.args...)...)
			if strings.HasPrefix(name, "node") && address == secret {
				continue // a host may be called so
			}
			assert.NotContains(t, w.err.String()+w.out.String(), secret, "%s %q", name, address)
			assert.NotEmpty(t, w.err.String()+w.out.String())
		}

		if !strings.Contains(address, "://") || strings.ContainsAny(address, "\n\x00") {
			continue // it is no address, and could be anything
		}
		for name, args := range map[string][]string{
			"argument":      {"do", address},
			"arguments":     {"do", "orders", address},
			"command":       {address},
			"duration":      {"do", "--timeout", address},
			"number":        {"do", "--number=" + address},
			"unknown flag":  {"do", "--" + address},
			"unknown flag2": {"do", "--url=" + address},
		} {
			w := newWorld(nil)
			assert.Equal(t, ExitUsage, w.run(t, command(dial), args...))
			assert.NotContains(t, w.err.String()+w.out.String(), secret, "%s %q", name, address)
		}
	}
}

func TestURI(t *testing.T) {
	for name, test := range map[string]struct {
		environ map[string]string
		args    []string
		uri     string
		err     string
	}{
		"none":         {nil, nil, "", "no broker address: set AMQP_URI, or --uri"},
		"environment":  {map[string]string{EnvURI: "amqp://a"}, nil, "amqp://a", ""},
		"flag":         {nil, []string{"--uri", "amqp://b"}, "amqp://b", ""},
		"both":         {map[string]string{EnvURI: "amqp://a"}, []string{"--uri", "amqp://b"}, "amqp://b", ""},
		"another text": {nil, []string{"--uri", "b"}, "", "wanted amqp://user:password@host:5672/vhost"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(test.environ)
			code := w.run(t, command(func(s *Session, _ *cobra.Command, _ []string) error {
				uri, err := s.URI()
				assert.Equal(t, test.uri, uri)
				return err
			}), append([]string{"do"}, test.args...)...)
			assert.Contains(t, w.err.String(), test.err)
			assert.Equal(t, test.err != "", code == ExitUsage)
		})
	}
}

func TestManagement(t *testing.T) {
	for name, test := range map[string]struct {
		environ map[string]string
		args    []string
		ok      bool
		url     string
		vhost   string
	}{
		"none":        {nil, nil, false, "", ""},
		"environment": {map[string]string{EnvManagement: "http://a"}, nil, true, "http://a", "/"},
		"flag": {map[string]string{EnvManagement: "http://a"}, []string{"--management-url", "http://b"},
			true, "http://b", "/"},
		"vhost of the URI": {map[string]string{EnvURI: "amqp://h/v%2F1"}, []string{"--management-url", "http://b"},
			true, "http://b", "v/1"},
		"vhost of the flag": {map[string]string{EnvURI: "amqp://h/v"}, []string{"--management-url", "http://b",
			"--vhost", "w"}, true, "http://b", "w"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(test.environ)
			code := w.run(t, command(func(s *Session, _ *cobra.Command, _ []string) error {
				m, ok, err := s.Management()
				assert.Equal(t, test.ok, ok)
				assert.Equal(t, test.url, m.URL)
				assert.Equal(t, test.vhost, m.VHost)
				return err
			}), append([]string{"do"}, test.args...)...)
			assert.Equal(t, ExitOK, code, w.err.String())
		})
	}
}

// A peer that takes the connection and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	}()

	return "amqp://user:" + secret + "@" + listener.Addr().String() + "/"
}

func TestDialIsBounded(t *testing.T) {
	w := newWorld(map[string]string{EnvURI: silent(t)})
	began := time.Now()
	code := w.run(t, command(func(s *Session, cmd *cobra.Command, _ []string) error {
		_, err := s.Dial(cmd.Context())
		return err
	}), "do", "--timeout", "200ms")
	assert.Equal(t, ExitFailed, code)
	assert.Contains(t, w.err.String(), "no connection within 200ms")
	assert.Less(t, time.Since(began), 10*time.Second)
	assert.NotContains(t, w.err.String(), secret)
}

func TestDialIsInterrupted(t *testing.T) {
	w := newWorld(map[string]string{EnvURI: silent(t)})
	errOver := errors.New("over")
	began := time.Now()
	code := w.run(t, command(func(s *Session, cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithCancelCause(cmd.Context())
		time.AfterFunc(100*time.Millisecond, func() { cancel(errOver) })
		_, err := s.Dial(ctx)
		assert.ErrorIs(t, err, errOver)
		return err
	}), "do", "--timeout", "10m")
	assert.Equal(t, ExitFailed, code)
	assert.Less(t, time.Since(began), time.Minute)
}

func TestTLSFlags(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.pem")
	require.NoError(t, os.WriteFile(none, []byte("no certificate"), 0o600))
	for name, test := range map[string]struct {
		args []string
		err  string
		code int
	}{
		"half a pair":    {[]string{"--cert", "a"}, "--cert and --key need each other", ExitUsage},
		"no file":        {[]string{"--ca-cert", "/nowhere/ca.pem"}, "/nowhere/ca.pem", ExitFailed},
		"no certificate": {[]string{"--ca-cert", none}, "no certificate in", ExitFailed},
		"no pair":        {[]string{"--cert", none, "--key", none}, "--cert, --key", ExitFailed},
		"without TLS": {[]string{"--cert", none, "--key", none, "--uri", "amqp://127.0.0.1:1"},
			"sends the password unencrypted: use amqps://", ExitUsage},
		"nor http": {[]string{"--ca-cert", none, "--uri", "amqp://127.0.0.1:1", "--management-url",
			"http://127.0.0.1:1"}, "use amqps://", ExitUsage},
		"but https": {[]string{"--ca-cert", none, "--uri", "amqp://127.0.0.1:1", "--management-url",
			"HTTPS://127.0.0.1:1"}, "no certificate in", ExitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(map[string]string{EnvURI: "amqps://127.0.0.1:1"})
			code := w.run(t, command(func(s *Session, cmd *cobra.Command, _ []string) error {
				_, err := s.Dial(cmd.Context())
				return err
			}), append([]string{"do"}, test.args...)...)
			assert.Equal(t, test.code, code)
			assert.Contains(t, w.err.String(), test.err)
		})
	}
}

func TestTargets(t *testing.T) {
	targets, err := Targets([]string{"orders", "events=events_billing", "a=b=c"})
	require.NoError(t, err)
	assert.Equal(t, []Target{{"orders", "orders"}, {"events", "events_billing"}, {"a", "b=c"}}, targets)
	for _, args := range [][]string{nil, {""}, {"=x"}, {"x="}, {"amqp://u:p@h"}, {"orders", "amqp://h/?a=b"}} {
		_, err := Targets(args)
		code, _ := codeOf(err)
		assert.Equal(t, ExitUsage, code, args)
	}
}

func TestPolicies(t *testing.T) {
	file := filepath.Join(t.TempDir(), "retry.yaml")
	require.NoError(t, os.WriteFile(file, []byte("default: {delays: [3s]}\n"), 0o600))
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("default: {delays: [0s, 1µs]}\ntopics: {x: {bogus: 1}}\n"), 0o600))
	for name, test := range map[string]struct {
		environ map[string]string
		args    []string
		retries int
		errs    []string
	}{
		"the default": {nil, nil, 5, nil},
		"flag":        {map[string]string{EnvPolicies: bad}, []string{"--policies", file}, 1, nil},
		"environment": {map[string]string{EnvPolicies: file}, nil, 1, nil},
		"all errors": {map[string]string{EnvPolicies: bad}, nil, 0, []string{"bad.yaml:1: default.delays[0]",
			"default.delays[1]", "bad.yaml:2: ", "bogus"}},
		"no file": {nil, []string{"--policies", "/nowhere.yaml"}, 0, []string{"/nowhere.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(test.environ)
			code := w.run(t, command(func(s *Session, _ *cobra.Command, _ []string) error {
				policies, err := s.Policies()
				if err != nil {
					return err
				}
				return s.PrintJSON(policies.For("orders").MaxRetries())
			}), append([]string{"do"}, test.args...)...)
			for _, text := range test.errs {
				assert.Contains(t, w.err.String(), text)
			}
			if test.errs != nil {
				assert.Equal(t, ExitFailed, code)
				return
			}
			var retries int
			require.NoError(t, json.Unmarshal(w.out.Bytes(), &retries))
			assert.Equal(t, test.retries, retries)
		})
	}
}
