# Everything that is fetched or built beside the product is pinned, in hack/, and kept in .cache/
# ($HOMING_CACHE elsewhere). docs/development.md has the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
IMAGE ?= homing:$(VERSION)
FUZZTIME ?= 30s
TOOL := hack/tool.sh
LDFLAGS := -s -w -X main.version=$(VERSION)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^##@/ { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

##@ Build

.PHONY: build
build: ## Build bin/homing
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/homing ./cmd/homing

.PHONY: image
image: ## Build a container image (IMAGE=name:tag; PLATFORMS=linux/amd64,linux/arm64 builds both and pushes)
	@hack/image.sh '$(IMAGE)' '$(VERSION)' '$(PLATFORMS)'

.PHONY: clean
clean: ## Remove what was built (.cache/ too with ALL=1)
	rm -rf bin $(if $(ALL),.cache)

##@ Test

.PHONY: test
test: ## Run every test on real parts: units with -race, each benchmark once, data plane, engines
	@hack/test.sh

.PHONY: test-fast
test-fast: ## Run the unit tests alone, with -race: seconds, nothing fetched
	go test -race $$(go list ./... | grep -v /test/)

.PHONY: bench
bench: ## Print the benchmarks' tables (BENCH=regexp, COUNT=n)
	@hack/bench.sh

.PHONY: fuzz
fuzz: ## Fuzz each target in turn (FUZZTIME=30s each)
	@hack/fuzz.sh '$(FUZZTIME)'

.PHONY: demo
demo: ## Show it: real Envoy, four simulated engines, three strategies (ENGINE=vllm, KEEP=1)
	@hack/demo.sh $(if $(ENGINE),-engine=$(ENGINE)) $(if $(KEEP),-keep)

.PHONY: eval
eval: ## Simulate all that docs/evaluation.md shows, and write it there: ten minutes
	go run ./hack/eval

.PHONY: eval-vllm
eval-vllm: ## Measure strategies on three real vLLM engines (SEEDS=5): half an hour a seed
	go run ./hack/eval -real -seeds $(or $(SEEDS),5)

##@ Check

.PHONY: lint
lint: ## Check the code's rules, the import direction among them
	$(TOOL) golangci-lint run ./...

.PHONY: fmt
fmt: ## Format the code
	$(TOOL) golangci-lint fmt ./...

.PHONY: generate
generate: ## Make the CRD, the deep-copy functions and the schemas of files from the Go types, and Go from .proto files
	$(TOOL) controller-gen object crd paths=./api/... output:crd:dir=config/crd
	$(TOOL) controller-gen crd paths=./pkg/standalone/schema \
	  paths=sigs.k8s.io/gateway-api-inference-extension/api/v1 output:crd:dir=pkg/standalone/schema
	cp config/crd/homing.dev_*.yaml charts/homing/crds/
	$(TOOL) buf generate --template hack/tools/proto/buf.gen.yaml pkg --output pkg

.PHONY: verify
verify: ## Check that generated files, go.mod files and formatting are as they should be
	@hack/verify.sh
