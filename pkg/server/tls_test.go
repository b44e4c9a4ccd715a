package server

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// anyCertificate is how gateways speak to their picker: encrypted, unverified, by whatever name.
func anyCertificate(name string, protocols ...string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, ServerName: name, NextProtos: protocols} //nolint:gosec // see above
}

func TestSelfSigned(t *testing.T) {
	h := start(t, func(o *Options) { o.TLS = TLSOptions{} })
	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	for _, name := range []string{"", "homing.inference.svc", "example.com"} {
		conn := dial(t, local(port), grpc.WithTransportCredentials(credentials.NewTLS(anyCertificate(name))))
		mustAnswer(t, openStream(t, conn), "a")
	}

	conn, err := tls.Dial("tcp", local(port), anyCertificate("a", "h2", "http/1.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != "h2" {
		t.Errorf("ALPN %q, want h2", state.NegotiatedProtocol)
	}
	cert := state.PeerCertificates[0]
	if now := time.Now(); now.Before(cert.NotBefore) || now.AddDate(5, 0, 0).After(cert.NotAfter) {
		t.Errorf("the certificate is good from %v to %v", cert.NotBefore, cert.NotAfter)
	}
	if _, err := tls.Dial("tcp", local(port), &tls.Config{ServerName: "homing"}); err == nil { //nolint:gosec // any version
		t.Error("a self-signed certificate was found trustworthy")
	}
}

// Gateways exist that speak HTTP/2 at once, without a word of ALPN.
func TestWithoutALPN(t *testing.T) {
	h := start(t, func(o *Options) { o.TLS = TLSOptions{} })
	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	conn, err := tls.Dial("tcp", local(port), anyCertificate("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	frame, err := framer.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := frame.(*http2.SettingsFrame); !ok {
		t.Errorf("answered with %v", frame)
	}
}

// Plaintext on a TLS port costs that connection only, and holds up nothing.
func TestPlaintextOnTLS(t *testing.T) {
	h := start(t, func(o *Options) { o.TLS = TLSOptions{} })
	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	conn, err := net.Dial("tcp", local(port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !isReset(err) {
		t.Errorf("not closed: %v", err)
	}
	mustAnswer(t, openStream(t, dial(t, local(port), grpc.WithTransportCredentials(credentials.NewTLS(anyCertificate("a"))))), "a")
}

func isReset(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // as net returns it
	return ok && !timeout.Timeout()
}

func TestCertificateFilesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	first := writeCertificate(t, dir)
	h := start(t, func(o *Options) { o.TLS = TLSOptions{CertPath: dir} })
	port := freePort(t)
	h.serve(map[string]uint16{"a": port})
	served := func() []byte {
		conn, err := tls.Dial("tcp", local(port), anyCertificate("any.name", "h2"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Raw
	}
	if !bytes.Equal(served(), first) {
		t.Fatal("it is not the certificate of the files")
	}
	before := openStream(t, dial(t, local(port), grpc.WithTransportCredentials(credentials.NewTLS(anyCertificate("a")))))
	mustAnswer(t, before, "a")

	second := writeCertificate(t, dir)
	h.eventually("the new certificate is not served", func() bool { return bytes.Equal(served(), second) })
	mustAnswer(t, before, "a")

	// What is broken is not taken.
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.certs.watcher.ReadCertificate(); err == nil {
		t.Error("rubbish was read without complaint")
	}
	if !bytes.Equal(served(), second) {
		t.Error("a broken file took the certificate away")
	}
}

// writeCertificate makes a new certificate in the way that Kubernetes names its files.
func writeCertificate(t *testing.T, dir string) []byte {
	t.Helper()
	cert, err := selfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert.Certificate[0]},
		"tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert.Certificate[0]
}
