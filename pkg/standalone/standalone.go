// Package standalone publishes the pools that a directory of YAML files describes, and follows the files.
//
// Invariant: what is published is always a whole configuration that was found correct, by the rules an
// API server would apply. A directory that turns bad changes nothing but a metric and a line in the log.
package standalone

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/homing-dev/homing/pkg/endpoint"
	"github.com/homing-dev/homing/pkg/standalone/schema"
)

const (
	// settle is how long the directory must have been quiet before it is read: an editor or a copy
	// makes several changes of one.
	settle = 100 * time.Millisecond
	// pollInterval is how often the directory is read whether or not it said that it changed. Some file
	// systems, and symbolic links that lead elsewhere, do not say.
	pollInterval = 5 * time.Second
	// maxFileSize bounds what is read of one file, in bytes.
	maxFileSize = 16 << 20
)

// Options are what a [Follower] is made of.
type Options struct {
	Dir        string
	Store      *endpoint.Store
	Defaults   Defaults
	Registerer prometheus.Registerer
	Log        logr.Logger
}

// Follower keeps a store equal to a directory.
type Follower struct {
	options Options
	rules   schema.Set
	metrics *metrics
	seen    [sha256.Size]byte // of the files as last read
	first   []endpoint.PoolSpec
}

// New reads the directory. What is wrong with it is returned: an [Errors] for what its files say.
func New(o Options) (*Follower, error) {
	rules, err := schema.NewSet()
	if err != nil {
		return nil, err
	}
	files, err := readDir(o.Dir)
	if err != nil {
		return nil, err
	}
	f := &Follower{options: o, rules: rules, metrics: newMetrics(o.Registerer), seen: digest(files)}
	if f.first, err = load(rules, o.Defaults, o.Dir, files); err != nil {
		return nil, err
	}
	return f, nil
}

// Start publishes what New read and follows the directory until ctx ends.
func (f *Follower) Start(ctx context.Context) error {
	f.publish(f.first)
	f.first = nil
	// Without announcements the channels stay nil, and polling is all there is.
	var events <-chan fsnotify.Event
	var overflows <-chan error
	watch := func() {}
	if watcher, err := fsnotify.NewWatcher(); err != nil {
		f.options.Log.Error(err, "Changes of files are not announced; reading them every so often", "interval", pollInterval.String())
	} else {
		defer watcher.Close()
		events, overflows = watcher.Events, watcher.Errors
		// Again and again, because the directory may have been replaced; polling covers a failure.
		watch = func() { _ = watcher.Add(f.options.Dir) }
	}
	watch()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	quiet := time.NewTimer(settle) // what changed between New and watch
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-events:
			if !event.Has(fsnotify.Chmod) {
				quiet.Reset(settle)
			}
		case err := <-overflows:
			f.options.Log.V(1).Info("Some changes of files were missed; reading all", "reason", err.Error())
			quiet.Reset(settle)
		case <-quiet.C:
			f.reload()
		case <-poll.C:
			watch()
			f.reload()
		}
	}
}

// reload reads the directory, and publishes it if it changed and is correct.
func (f *Follower) reload() {
	files, err := readDir(f.options.Dir)
	sum := digest(files)
	if err != nil {
		sum = sha256.Sum256([]byte(err.Error()))
	}
	if sum == f.seen {
		return
	}
	f.seen = sum
	var specs []endpoint.PoolSpec
	if err == nil {
		specs, err = load(f.rules, f.options.Defaults, f.options.Dir, files)
	}
	if err != nil {
		f.metrics.failed(err)
		f.options.Log.Error(errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")), "The configuration is wrong; keeping the last good one", "dir", f.options.Dir)
		return
	}
	f.publish(specs)
}

func (f *Follower) publish(specs []endpoint.PoolSpec) {
	f.options.Store.Publish(specs)
	f.metrics.succeeded()
	endpoints := 0
	for _, s := range specs {
		endpoints += len(s.Endpoints)
	}
	f.options.Log.Info("Read the configuration", "dir", f.options.Dir, "pools", len(specs), "endpoints", endpoints)
}

// file is a file as it was read.
type file struct {
	path    string
	content []byte
}

// readDir reads every *.yaml and *.yml file of a directory, by name. Hidden files are skipped: editors
// and Kubernetes's volumes keep their own there.
func readDir(dir string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); strings.HasPrefix(e.Name(), ".") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		path := filepath.Join(dir, e.Name())
		content, err := readFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, file{path, content})
	}
	return files, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxFileSize {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, maxFileSize)
	}
	return content, nil
}

func digest(files []file) [sha256.Size]byte {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%q %d\n", f.path, len(f.content))
		h.Write(f.content)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
