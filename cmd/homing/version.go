package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
)

// version is set by the linker for a release: -X main.version=v1.2.3.
var version string

// build is what this binary was built from.
type build struct{ version, revision string }

func thisBuild() build {
	b := build{version: version, revision: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if b.version == "" {
		b.version = info.Main.Version
	}
	if b.version == "" {
		b.version = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.revision = s.Value
		}
	}
	return b
}

func (b build) register(reg prometheus.Registerer) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "homing_build_info",
		Help:        "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"version": b.version, "revision": b.revision, "goversion": runtime.Version()},
	}, func() float64 { return 1 }))
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print what this binary was built from",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "homing %s (revision %s, %s, %s/%s)\n", b.version, b.revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
