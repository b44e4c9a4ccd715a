// Command sim runs one simulated vLLM server on one address: that of $POD_IP, or 127.0.0.1. It is
// llm-d-inference-sim with all of its flags, but for where it listens: upstream's own command listens on
// every interface.
package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/llm-d/llm-d-inference-sim/pkg/common"
	"github.com/llm-d/llm-d-inference-sim/pkg/communication"
	vllmsim "github.com/llm-d/llm-d-inference-sim/pkg/llm-d-inference-sim"
	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends. Streams that are open then are cut: nobody waits for them here.
func run(ctx context.Context) error {
	logger := klog.Background()
	config, err := common.ParseCommandParamsAndLoadConfig()
	if err != nil {
		return fmt.Errorf("reading flags: %w", err)
	}
	sims, err := vllmsim.Start(klog.NewContext(ctx, logger), config, logger)
	if err != nil {
		return fmt.Errorf("starting the simulator: %w", err)
	}
	if len(sims) != 1 {
		return fmt.Errorf("%d data-parallel ranks asked for; one process is one endpoint", len(sims))
	}
	address := cmp.Or(os.Getenv("POD_IP"), "127.0.0.1")
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(config.Port)))
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- communication.New(logger, sims[0]).StartHTTPServer(ctx, listener) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
		return nil
	}
}
