package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Token is a token of a ServiceAccount that exists, good for an hour, for these audiences or the API server.
func (c *Cluster) Token(t testing.TB, namespace, name string, audiences ...string) string {
	t.Helper()
	token, err := c.token(t.Context(), namespace, name, audiences...)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (c *Cluster) token(ctx context.Context, namespace, name string, audiences ...string) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	if err := c.Client.SubResource("token").Create(ctx, account, request); err != nil {
		return "", fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return request.Status.Token, nil
}

// WriteKubeconfig writes the kubeconfig of a ServiceAccount that exists to a file.
func (c *Cluster) WriteKubeconfig(ctx context.Context, path, namespace, name string) error {
	token, err := c.token(ctx, namespace, name)
	if err != nil {
		return err
	}
	return c.writeKubeconfig(path, token)
}

// ServiceAccount is a client's configuration with the rights of a ServiceAccount that exists, and no others.
func (c *Cluster) ServiceAccount(t testing.TB, namespace, name string) *rest.Config {
	t.Helper()
	config := rest.CopyConfig(c.Config)
	config.BearerToken = c.Token(t, namespace, name)
	return config
}

// Kubeconfig writes a client's configuration for programs that read one from a file, and gives its path.
func (c *Cluster) Kubeconfig(t testing.TB, config *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.writeKubeconfig(path, config.BearerToken); err != nil {
		t.Fatal(err)
	}
	return path
}

func (c *Cluster) writeKubeconfig(path, token string) error {
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: c.Config.Host, CertificateAuthorityData: c.Config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	}, path)
}

// AdminKubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) AdminKubeconfig() string { return c.kubeconfig }
