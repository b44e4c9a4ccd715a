// Command homing is an endpoint picker for LLM pools: it keeps every prompt prefix at home.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		// The first signal drains, a second one ends the process at once. One that follows on its heels
		// is the same one: wrappers such as timeout and make deliver it twice.
		time.Sleep(time.Second)
		stop()
	})
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program. It returns the exit code: 0, or 1 after a line for each thing that is wrong.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:   "homing",
		Short: "Keeps every prompt prefix at home",
		Long: `Homing is an endpoint picker for pools of LLM servers. A gateway built on Envoy asks it, over ext_proc,
which server should get a request, and it answers so that requests that begin alike meet the same
warm KV cache.`,
		Example: `  homing serve --standalone ./pools     pools from files, without Kubernetes
  homing version`,
		SilenceUsage:  true,
		SilenceErrors: true,

		DisableSuggestions: true, // they take several lines
	}
	root.AddCommand(newServeCommand(), newSimulateCommand(), newVersionCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		for line := range strings.Lines(err.Error()) { // one for each thing that is wrong
			_, _ = fmt.Fprintf(stderr, "homing: %s\n", strings.TrimSuffix(line, "\n"))
		}
		return 1
	}
	return 0
}
