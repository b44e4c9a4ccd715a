#!/bin/bash
# image.sh IMAGE PLATFORMS VERSION: builds the image with docker or podman.
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

image=$1 platforms=$2 version=$3
if docker buildx version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then
  # Only an image for one platform can be loaded into the local engine; for more, push it.
  case $platforms in
    *,*) docker buildx build --platform "$platforms" --build-arg VERSION="$version" -t "$image" ${PUSH:+--push} . ;;
    *) docker buildx build --platform "$platforms" --build-arg VERSION="$version" -t "$image" --load . ;;
  esac
elif command -v podman >/dev/null; then
  podman build --platform "$platforms" --build-arg VERSION="$version" --manifest "$image" .
elif docker info >/dev/null 2>&1; then
  docker build --build-arg VERSION="$version" -t "$image" .
else
  die "needs docker with a running engine, or podman; neither is here. 'make build' makes the same static binary"
fi
