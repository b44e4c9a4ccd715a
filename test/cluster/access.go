package cluster

import (
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
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	if err := c.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
		t.Fatalf("token of ServiceAccount %s/%s: %v", namespace, name, err)
	}
	return request.Status.Token
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
	file := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"test": {Token: config.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test"}},
		CurrentContext: "test",
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// AdminKubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) AdminKubeconfig() string { return c.kubeconfig }
