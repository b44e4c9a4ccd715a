// The tools that building and checking need, pinned apart from the product's own dependencies.
module github.com/homing-dev/homing/hack/tools

go 1.26.0

tool (
	github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	golang.org/x/perf/cmd/benchstat
	gotest.tools/gotestsum
	sigs.k8s.io/controller-tools/cmd/controller-gen
)

require (
	github.com/bitfield/gotestdox v0.2.2 // indirect
	github.com/dnephin/pflag v1.0.7 // indirect
	github.com/fatih/color v1.19.0 // indirect
	github.com/fsnotify/fsnotify v1.9.0 // indirect
	github.com/golangci/golangci-lint/v2 v2.15.0 // indirect
	github.com/google/shlex v0.0.0-20191202100458-e7afc7fbc510 // indirect
	github.com/mattn/go-colorable v0.1.16 // indirect
	github.com/mattn/go-isatty v0.0.22 // indirect
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/perf v0.0.0-20260908200009-22c9c6c9d4da // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.46.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	golang.org/x/tools v0.52.0 // indirect
	gotest.tools/gotestsum v1.13.0 // indirect
	sigs.k8s.io/controller-tools v0.23.0 // indirect
)
