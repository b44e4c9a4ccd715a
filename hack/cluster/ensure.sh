#!/bin/bash
# ensure.sh WHAT...: the programs that the cluster tests run against, on a machine without Docker: a Kubernetes
# control plane, kwok, helm and two gateways' control planes. Prints a line `WHAT PATH` for each.
#   etcd kube-apiserver kubectl kube-controller-manager kube-scheduler kwok helm pilot-discovery envoy-gateway, or
#   all: those that the tests need
# Versions are those of the modules in hack/tools. etcd, kube-apiserver and kubectl are downloaded by setup-envtest
# where it can reach its host, and built like the others where it can't.
# $SETUP_ENVTEST: more arguments for setup-envtest (say --index URL), or "off" not to try it.
. "$(dirname "$0")/../lib.sh"

envtest_version=v0.25.1

# describe WHAT sets dir (in hack/tools), package, module (whose version names the build), variable (where the
# linker writes that version), cpu (CPU-seconds of a build with a cold cache), version and path.
describe() {
  variable=
  case $1 in
    etcd)
      dir=etcd package=go.etcd.io/etcd/server/v3 module=$package cpu=63 ;;
    kube-apiserver | kubectl | kube-controller-manager | kube-scheduler)
      dir=k8s package=k8s.io/kubernetes/cmd/$1 module=k8s.io/kubernetes
      variable=k8s.io/component-base/version.gitVersion
      case $1 in
        kube-apiserver) cpu=820 ;;
        kube-controller-manager) cpu="200 after kube-apiserver's" ;;
        *) cpu="60 after kube-apiserver's" ;;
      esac ;;
    kwok)
      dir=kwok package=sigs.k8s.io/kwok/cmd/kwok module=sigs.k8s.io/kwok
      variable=sigs.k8s.io/kwok/pkg/consts.Version cpu=182 ;;
    helm)
      dir=helm package=helm.sh/helm/v4/cmd/helm module=helm.sh/helm/v4
      variable=helm.sh/helm/v4/internal/version.version cpu=266 ;;
    pilot-discovery)
      dir=istio package=istio.io/istio/pilot/cmd/pilot-discovery module=istio.io/istio
      variable=istio.io/istio/pkg/version.buildVersion cpu=480 ;;
    envoy-gateway)
      dir=envoygateway package=github.com/envoyproxy/gateway/cmd/envoy-gateway module=github.com/envoyproxy/gateway
      cpu=398 ;;
    *) die "unknown program $1" ;;
  esac
  version=$(awk -v m="$module" '$1 == m { print $2; exit }' "$ROOT/hack/tools/$dir/go.mod")
  [ -n "$version" ] || die "no version of $module in hack/tools/$dir/go.mod"
  path=$HOMING_CACHE/bin/$1-$version
}

# envtest: the folder of setup-envtest's programs of the same Kubernetes minor; fails where it can't have them.
envtest() {
  local minor tool=$HOMING_CACHE/bin/setup-envtest-$envtest_version
  local args=(--bin-dir "$HOMING_CACHE/envtest" ${SETUP_ENVTEST:-})
  minor=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "$ROOT/hack/tools/k8s/go.mod" | sed 's/^v//; s/\.[0-9]*$//')
  if [ ! -x "$tool" ]; then
    GOBIN=$tool.d CGO_ENABLED=0 go install "sigs.k8s.io/controller-runtime/tools/setup-envtest@$envtest_version" >&2 || return
    mv "$tool.d/setup-envtest" "$tool"
    rmdir "$tool.d"
  fi
  timeout 15 "$tool" list "${args[@]}" "$minor.x" >/dev/null 2>&1 &&
    timeout 600 "$tool" use "${args[@]}" -p path "$minor.x" 2>/dev/null
}

build() {
  local flags="-s -w"
  [ -z "$variable" ] || flags+=" -X $variable=$version"
  timed "$1 $version: building (CPU-seconds with a cold cache: about $cpu)" \
    env -C "$ROOT/hack/tools/$dir" CGO_ENABLED=0 \
    go build -trimpath -buildvcs=false -tags grpcnotrace -ldflags "$flags" -o "$path.new" "$package"
  mv "$path.new" "$path"
}

fetch() {
  local assets
  case $1 in
    etcd | kube-apiserver | kubectl)
      if [ "${SETUP_ENVTEST:-}" != off ]; then
        if assets=$(envtest) && [ -x "$assets/$1" ]; then
          say "$1: $assets/$1 of setup-envtest"
          ln -sf "$assets/$1" "$path"
          return
        fi
        say "$1: setup-envtest can't have it here"
        SETUP_ENVTEST=off
      fi ;;
  esac
  build "$1"
}

[ $# -gt 0 ] || die "which programs? see the head of this script"
[ "$*" != all ] || set -- etcd kube-apiserver helm kube-controller-manager kube-scheduler kwok pilot-discovery envoy-gateway
for what in "$@"; do
  describe "$what"
  once "$path" "$what" fetch "$what"
  echo "$what $path"
done
