package brokertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Authority issues certificates that only those trust who are told to.
type Authority struct {
	// Pool trusts this authority and no other.
	Pool *x509.CertPool

	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority makes an authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	template := certificate("amqpretry test authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a := &Authority{Pool: x509.NewCertPool()}
	issued := a.issue(t, template)
	a.certificate, a.key = issued.Leaf, issued.PrivateKey.(*ecdsa.PrivateKey) //nolint:forcetypeassert // made by issue
	a.Pool.AddCert(a.certificate)
	return a
}

// Client issues a certificate with which a client logs in as the user of that name.
func (a *Authority) Client(t testing.TB, user string) tls.Certificate {
	t.Helper()
	return a.issue(t, certificate(user))
}

// ExpiredClient is [Authority.Client], but its time is over.
func (a *Authority) ExpiredClient(t testing.TB, user string) tls.Certificate {
	t.Helper()
	expired := certificate(user)
	expired.NotBefore, expired.NotAfter = expired.NotBefore.Add(-2*time.Hour), expired.NotBefore
	return a.issue(t, expired)
}

// certificate is what is common to all: for an hour, for both sides, and for this machine.
func certificate(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
}

// issue signs with the authority's key, or with the new one where it has none yet.
func (a *Authority) issue(t testing.TB, template *x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// StartTLS is [Start] with amqps at [Broker.TLSURI], for clients with a certificate of that
// authority. Its own is for localhost and 127.0.0.1. Such a client may also log in without a
// password (EXTERNAL).
func StartTLS(t testing.TB, a *Authority) *Broker {
	t.Helper()
	server := a.issue(t, certificate("broker"))
	key, err := x509.MarshalPKCS8PrivateKey(server.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for name, block := range map[string]*pem.Block{
		"ca.pem":     {Type: "CERTIFICATE", Bytes: a.certificate.Raw},
		"server.pem": {Type: "CERTIFICATE", Bytes: server.Leaf.Raw},
		"server.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := start(t, nil, "--tls", folder)
	b.TLSURI = strings.TrimSpace(b.run("url", b.Dir))
	return b
}
