package dataplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/homing-dev/homing/test/env"
)

func TestSelfSignedTLS(t *testing.T) {
	r := newRig(t, setup{tls: true})
	for _, client := range []*http.Client{r.client, r.h2} {
		body := chat("tls", 100_000)
		post(t, client, r.envoy.URL+"/v1/chat/completions", body).passed(t, body)
	}
	r.settles()
}

// TestVerifiedTLS has Envoy check the certificate, which is renewed under way.
func TestVerifiedTLS(t *testing.T) {
	dir := t.TempDir()
	authority := newAuthority(t)
	authority.issue(t, dir, 1)
	r := newRig(t, setup{tls: true, homing: []string{"--cert-path", dir}, envoy: func(c env.EnvoyConfig) {
		upstream := c.Cluster("picker")["transport_socket"].(map[string]any)["typed_config"].(map[string]any)
		upstream["sni"] = "homing"
		upstream["common_tls_context"].(map[string]any)["validation_context"] = map[string]any{
			"trusted_ca": map[string]any{"inline_string": authority.pem},
			"match_typed_subject_alt_names": []any{map[string]any{
				"san_type": "DNS", "matcher": map[string]any{"exact": "homing"},
			}},
		}
	}})
	body := chat("tls", 3000)
	post(t, r.client, r.envoy.URL+"/v1/chat/completions", body).passed(t, body)

	authority.issue(t, dir, 2)
	eventually(t, "the renewed certificate", func() error {
		serial, err := servedSerial(r.pool.Port)
		if err == nil && serial != 2 {
			err = fmt.Errorf("serial %d is served", serial)
		}
		return err
	})
	post(t, r.client, r.envoy.URL+"/v1/chat/completions", body).passed(t, body)
	r.settles()
}

// TestPlaintextToTLS: a gateway that does not speak TLS is not served, whatever else it is.
func TestPlaintextToTLS(t *testing.T) {
	r := newRig(t, setup{tls: true, envoy: func(c env.EnvoyConfig) { delete(c.Cluster("picker"), "transport_socket") }})
	if got := post(t, r.client, r.envoy.URL+"/v1/chat/completions", chat("plain", 500)); got.status != http.StatusInternalServerError {
		t.Errorf("status %d, want Envoy's 500", got.status)
	}
	r.settles()
}

// TestMissingCertificate: homing does not start, and one line says why.
func TestMissingCertificate(t *testing.T) {
	e := env.For(t)
	binary, err := e.HomingBinary()
	env.Check(t, err)
	files, err := e.Files()
	if err != nil {
		t.Fatal(err)
	}
	said, err := exec.CommandContext(t.Context(), binary, "serve", "--standalone", files.Dir, "--cert-path", files.Dir).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("homing ended with %v, want exit status 1", err)
	}
	want := "homing: --cert-path: stat " + files.Dir + "/tls.crt: no such file or directory; the directory must hold tls.crt and tls.key\n"
	if string(said) != want {
		t.Errorf("homing said %q, want %q", said, want)
	}
}

// authority signs certificates.
type authority struct {
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	pem         string
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

// issue puts a new certificate for the name homing into a directory.
func (a *authority) issue(t testing.TB, dir string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{"homing"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// servedSerial is the serial number of the certificate at a port of 127.0.0.1.
func servedSerial(port int) (int64, error) {
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}
