package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"path/filepath"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// TLSOptions say how ext_proc is secured.
type TLSOptions struct {
	// Plaintext turns TLS off, for gateways that do not speak it to their picker.
	Plaintext bool
	// CertPath is a directory with tls.crt and tls.key, read again whenever they change. Empty, a
	// certificate is made up at start: it encrypts, and proves nothing.
	CertPath string
}

// certificates is a TLS configuration and what keeps it fresh.
type certificates struct {
	config  *tls.Config              // nil for plaintext
	watcher *certwatcher.CertWatcher // nil unless the certificate comes from files
}

func (o TLSOptions) load() (*certificates, error) {
	if o.Plaintext {
		return &certificates{}, nil
	}
	c := &certificates{config: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}}
	if o.CertPath == "" {
		cert, err := selfSigned(time.Now())
		if err != nil {
			return nil, fmt.Errorf("making a self-signed certificate: %w", err)
		}
		c.config.Certificates = []tls.Certificate{cert}
		return c, nil
	}
	watcher, err := certwatcher.New(filepath.Join(o.CertPath, "tls.crt"), filepath.Join(o.CertPath, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("certificate in %s: %w", o.CertPath, err)
	}
	c.watcher, c.config.GetCertificate = watcher, watcher.GetCertificate
	return c, nil
}

// watch keeps the certificate fresh until ctx ends.
func (c *certificates) watch(ctx context.Context) error {
	if c.watcher == nil {
		return nil
	}
	return c.watcher.Start(ctx)
}

// selfSigned makes a certificate for any name. Gateways do not verify it: the protocol asks for
// encryption alone.
func selfSigned(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"Homing"}},
		DNSNames:     []string{"homing", "localhost"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(10, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
