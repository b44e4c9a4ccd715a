#!/bin/bash
# image.sh IMAGE VERSION [PLATFORMS]: builds the image with docker or podman, for this machine's platform.
# With PLATFORMS (linux/amd64,linux/arm64) it builds one image for all of them and pushes it: a local
# engine holds images of its own platform only.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

image=$1 platforms=${3:-}
build=(--build-arg "VERSION=$2")
if docker info >/dev/null 2>&1; then
  if [ -n "$platforms" ]; then
    docker buildx build "${build[@]}" --platform "$platforms" --tag "$image" --push .
  else
    DOCKER_BUILDKIT=1 docker build "${build[@]}" --tag "$image" .
  fi
elif command -v podman >/dev/null; then
  if [ -n "$platforms" ]; then
    podman build "${build[@]}" --platform "$platforms" --manifest "$image" .
    podman manifest push --all "$image" "docker://$image"
  else
    podman build "${build[@]}" --tag "$image" .
  fi
else
  die "needs docker with a running engine, or podman; neither is here. 'make build' makes the same static binary"
fi
