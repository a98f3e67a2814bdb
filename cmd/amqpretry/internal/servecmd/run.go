package servecmd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

const (
	headTimeout  = 10 * time.Second
	idleTimeout  = 2 * time.Minute
	closeTimeout = 10 * time.Second
	mostHeader   = 64 << 10
)

func run(ctx context.Context, s *cli.Session, o options) error {
	broker, err := s.DLQConfig()
	if err != nil {
		return err
	}
	if len(o.queues) == 0 && broker.Management.URL == "" {
		return cli.Usage("no queues: set %s, or --management-url, or name main queues with --queue", cli.EnvManagement)
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer listener.Close()
	loopback := isLoopback(listener.Addr())
	if err := o.check(loopback); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(s.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	signIns := newSignIns(log)
	authorize, err := o.authorizer(signIns.tried)
	if err != nil {
		return err
	}
	file, err := o.openAudit()
	if err != nil {
		return err
	}
	defer file.Close()
	audit := slog.NewJSONHandler(synced{file}, nil)
	signIns.audit = audit

	hook, err := o.newWebhook(log)
	if err != nil {
		return err
	}
	policies, err := s.Policies()
	if err != nil {
		return err
	}
	config := dlqweb.Config{
		Broker: broker, Queues: o.queues, Policies: policies, Prefix: o.prefix, Authorize: authorize,
		ReadOnly: o.readOnly, Folder: o.folder, Audit: audit, Logger: watermill.NewSlogLogger(log),
	}
	if hook != nil {
		if hook.console == "" {
			hook.console = o.scheme() + "://" + listener.Addr().String() + o.prefix
		}
		config.OnNewCause = hook.add
		go hook.run(ctx)
	}
	console, err := dlqweb.New(config)
	if err != nil {
		return cli.Usage("%w", err)
	}
	defer func() { _ = console.Close() }()

	return serve(ctx, s, o, listener, handler(console, o, loopback))
}

// handler guards the console as the flags ask for.
func handler(console http.Handler, o options, loopback bool) http.Handler {
	if o.auth == "" && loopback {
		return onlyLocal(console)
	}

	if strings.HasPrefix(o.auth, "basic:") { // behind a proxy that signs users in, nobody has a password
		return challenge(console)
	}

	return console
}

// serve answers until the context ends.
func serve(ctx context.Context, s *cli.Session, o options, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: mostHeader}
	if o.tlsCert != "" {
		certificate, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
		if err != nil {
			return cli.Usage("--tls-cert: %w", err)
		}
		server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	}
	ended := make(chan error, 1)
	go func() {
		if o.tlsCert != "" {
			ended <- server.ServeTLS(listener, "", "")
			return
		}
		ended <- server.Serve(listener)
	}()
	s.Note("The console is at %s://%s%s/", o.scheme(), listener.Addr(), o.prefix)

	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := server.Shutdown(closing); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}

	return nil
}

func (o options) scheme() string {
	if o.tlsCert != "" {
		return "https"
	}

	return "http"
}

// openAudit opens the audit log, to write behind what it has.
func (o options) openAudit() (*os.File, error) {
	path := o.audit
	if path == "" {
		path = filepath.Join(o.folder, "audit.jsonl")
		if !o.readOnly {
			if err := os.MkdirAll(o.folder, 0o700); err != nil {
				return nil, fmt.Errorf("--folder: %w", err)
			}
		} else {
			path = os.DevNull
		}
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--audit: %w", err)
	}

	return file, nil
}

// synced is a file whose records outlive a crash.
type synced struct{ *os.File }

func (f synced) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	if err == nil {
		err = f.Sync()
	}
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) { // a pipe, or a device
		err = nil
	}

	return n, err
}
