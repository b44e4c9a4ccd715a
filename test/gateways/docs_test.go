package gateways

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/homing-dev/homing/test/env"
)

var configFile = regexp.MustCompile(`config/gateways/[\w./-]*\w`)

// The pages of docs/gateways point to the files that these tests apply: to all of them, and to none that is not there.
func TestPagesPointToTheFiles(t *testing.T) {
	root := env.Root()
	pages, err := filepath.Glob(filepath.Join(root, "docs/gateways/*.md"))
	env.Check(t, err)
	var named []string
	for _, page := range pages {
		text, err := os.ReadFile(page)
		env.Check(t, err)
		for _, name := range configFile.FindAllString(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("%s: %v", filepath.Base(page), err)
			}
			named = append(named, name)
		}
	}
	env.Check(t, filepath.WalkDir(filepath.Join(root, "config/gateways"), func(path string, entry fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root+"/")
		if err == nil && !entry.IsDir() && !slices.ContainsFunc(named, func(n string) bool { return n == name || strings.HasPrefix(name, n+"/") }) {
			t.Errorf("no page points to %s", name)
		}
		return err
	}))
}
