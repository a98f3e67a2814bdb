// Package servecmd is the command serve: the web console for dead letters, for who has no service
// to mount it in.
package servecmd

import (
	"net"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/amqpretry/watermill-retry/amqpretry/dlqweb"
	"github.com/amqpretry/watermill-retry/cmd/amqpretry/internal/cli"
)

// options are the flags.
type options struct {
	listen, prefix      string
	queues              []string
	auth, role          string
	grants, proxies     []string
	folder, audit       string
	tlsCert, tlsKey     string
	readOnly, plaintext bool
	webhook, publicURL  string
}

const defaultListen = "127.0.0.1:8672"

// Command is the command.
func Command(s *cli.Session) *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the web console for dead letters, and its HTTP API",
		Long: `Serve a web console: dead-letter queues, why their messages died, and replay, move, delete, export and
import with undo. The HTTP API is below /api/v1, its OpenAPI document is /api/v1/openapi.json.

With the management API the console finds all dead-letter queues of the virtual host. Without it,
name main queues with --queue.

It also lists the messages that wait for a main queue, sends them at once, postpones and cancels them.
--policies names their retry queues: the policy of the topic with the name of the main queue.

On a loopback address no sign-in is needed: everybody on this machine may do what --role says (default
delete). Requests through a reverse proxy are refused then, as far as they show it. Other addresses,
and consoles behind a proxy, need --auth:

  --auth basic:FILE   name and password. FILE has lines NAME:HASH with bcrypt hashes, as
                      "htpasswd -B" writes them
  --auth header:NAME  the user's name in the header NAME, set by a reverse proxy that has signed
                      the user in. --trusted-proxy names the proxy's addresses; the console refuses
                      all others. The proxy must remove the header from what clients send

--role is what everybody may do, --grant what single users may: metadata (numbers, reasons, times),
view (error texts, headers, bodies, messages that wait, exports), replay (replay, move, park, import,
undo; send and postpone what waits), delete (delete, and cancel what waits). The default of --role is
view with --auth.

Each run has a folder in --folder with its undo file. The folder needs room for every message that is
taken out, and nothing in it is deleted. Each action is written to --audit before it is done, and
again with its outcome; the default is audit.jsonl in --folder. So are sign-ins with --auth basic.
After 5 failed ones in a row, an address or a name has to wait, up to a minute.

--webhook gets a JSON object for each cause that a queue did not have before: text, queue, main_queue,
fingerprint, reason, error_type, handler, pattern, messages, newest, page and url, and no body or header
of a message. For it the console reads queues of up to 10,000 messages when they have grown, once a
minute at most. Causes of the first read are not new. A request is tried 3 times.

SIGTERM and ^C stop the runs and end the process.

Exit codes: 0 ended by a signal; 1 failed; 2 wrong usage.`,
		Example: `  amqpretry serve
  amqpretry serve --queue orders --queue invoices --read-only
  amqpretry serve --listen :8672 --auth basic:users --grant ada=delete --tls-cert cert.pem --tls-key key.pem
  amqpretry serve --listen 10.0.0.5:8672 --auth header:X-Forwarded-User --trusted-proxy 10.0.0.2`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), s, o) },
	}
	s.ConnectionFlags(cmd)
	s.PoliciesFlag(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen", defaultListen, "`address` to listen on")
	flags.StringVar(&o.prefix, "prefix", "", "`path` below which a reverse proxy passes requests on unchanged")
	flags.StringArrayVar(&o.queues, "queue", nil, "main `queue` whose dead letters are shown; repeatable")
	flags.StringVar(&o.auth, "auth", "", "sign-in of users, basic:FILE or header:NAME")
	flags.StringVar(&o.role, "role", "", "role of everybody: metadata, view, replay or delete")
	flags.StringArrayVar(&o.grants, "grant", nil, "role of one user, `USER=ROLE`; repeatable")
	flags.StringArrayVar(&o.proxies, "trusted-proxy", nil, "`address` of the reverse proxy, or a prefix such as "+
		"10.0.0.0/24; repeatable")
	flags.StringVar(&o.folder, "folder", "amqpretry-runs", "`folder` for runs and undo files; made if it is not there")
	flags.StringVar(&o.audit, "audit", "", "`file` for the audit log (default: audit.jsonl in --folder)")
	flags.BoolVar(&o.readOnly, "read-only", false, "show only: no replay, move, delete, import or export")
	flags.StringVar(&o.webhook, "webhook", "", "`URL` that gets a POST for each new cause of dead letters")
	flags.StringVar(&o.publicURL, "public-url", "", "`URL` of the console in these (default: the address it listens on)")
	flags.StringVar(&o.tlsCert, "tls-cert", "", "PEM `file` with the certificate of the console; needs --tls-key")
	flags.StringVar(&o.tlsKey, "tls-key", "", "PEM `file` with the private key of the console")
	flags.BoolVar(&o.plaintext, "plaintext", false, "allow --auth basic on an address that is not loopback without "+
		"TLS: passwords can be read on the way")
	cmd.MarkFlagsRequiredTogether("tls-cert", "tls-key")

	return cmd
}

// roles says what each user may do.
type roles struct {
	everybody dlqweb.Role
	users     map[string]dlqweb.Role
}

func (r roles) of(user string) dlqweb.Role {
	if role, granted := r.users[user]; granted {
		return role
	}

	return r.everybody
}

func (o options) roles() (roles, error) {
	r := roles{everybody: dlqweb.RoleView, users: map[string]dlqweb.Role{}}
	if o.auth == "" {
		r.everybody = dlqweb.RoleDelete
	}
	var err error
	if o.role != "" {
		if r.everybody, err = dlqweb.ParseRole(o.role); err != nil {
			return r, cli.Usage("--role: %w", err)
		}
	}
	if len(o.grants) > 0 && o.auth == "" {
		return r, cli.Usage("--grant needs --auth: without it nobody says who he is")
	}
	for _, grant := range o.grants {
		user, role, ok := strings.Cut(grant, "=")
		if !ok || user == "" {
			return r, cli.Usage("--grant: must be USER=ROLE, got %q", grant)
		}
		if r.users[user], err = dlqweb.ParseRole(role); err != nil {
			return r, cli.Usage("--grant: %w", err)
		}
	}

	return r, nil
}

// trusted are the addresses of --trusted-proxy.
func (o options) trusted() ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range o.proxies {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			address, failed := netip.ParseAddr(text)
			if failed != nil {
				return nil, cli.Usage("--trusted-proxy: must be an address, or a prefix such as 10.0.0.0/24, got %q",
					text)
			}
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		all = append(all, prefix.Masked())
	}

	return all, nil
}

// isLoopback tells whether only this machine can reach an address.
func isLoopback(address net.Addr) bool {
	tcp, ok := address.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// check looks at what cannot go together. loopback tells where it listens.
func (o options) check(loopback bool) error {
	kind, value, _ := strings.Cut(o.auth, ":")
	switch {
	case o.auth == "" && !loopback:
		return cli.Usage("--listen: %s can be reached by others, so users must sign in: pass --auth, or listen on %s",
			o.listen, defaultListen)
	case o.auth == "":
		return nil
	case kind != "basic" && kind != "header" || value == "":
		return cli.Usage("--auth: must be basic:FILE or header:NAME, got %q", o.auth)
	case kind == "header" && len(o.proxies) == 0:
		return cli.Usage("--auth header needs --trusted-proxy: everybody else could set the header")
	case kind == "basic" && len(o.proxies) > 0:
		return cli.Usage("--trusted-proxy is for --auth header")
	case kind == "basic" && !loopback && o.tlsCert == "" && !o.plaintext:
		return cli.Usage("--auth basic sends passwords: pass --tls-cert and --tls-key, or --plaintext if something " +
			"before the console encrypts")
	}

	return nil
}
