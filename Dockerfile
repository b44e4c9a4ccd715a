# syntax=docker/dockerfile:1
# A static binary on a base with nothing but certificates and time zones. Built on the builder's own
# platform for any target: docker buildx build --platform linux/amd64,linux/arm64 .

FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY api api
COPY cmd cmd
COPY config config
COPY pkg pkg
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -ldflags "-s -w -X main.version=$VERSION" -o /homing ./cmd/homing

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /homing /homing
USER 65532:65532
# 9002 and 9100-9131 ext_proc, one port a pool; 9003 health; 9004 peers; 9090 metrics
EXPOSE 9002 9003 9004 9090
ENTRYPOINT ["/homing"]
CMD ["serve"]
