package prefix

import "testing"

func TestEveryPartOfTheScopeMatters(t *testing.T) {
	seen := map[Key]string{}
	for name, scope := range map[string]Scope{
		"none":      {},
		"model":     {Model: 7},
		"salt":      {CacheSalt: 7},
		"isolation": {Isolation: 7},
		"tools":     {Tools: 7},
	} {
		for _, text := range []string{"", "a", "b"} {
			k := Of(scope, []byte(text))
			if other, dup := seen[k]; dup {
				t.Errorf("%s/%q has the key of %s", name, text, other)
			}
			seen[k] = name + "/" + text
		}
	}
}

// Replicas of different versions must agree: a key that changes with a release scatters every prompt
// while it rolls out. Change this value only together with a note for users who upgrade.
func TestKeysAreStableAcrossReleases(t *testing.T) {
	got := Of(Scope{Model: Digest("llama"), Isolation: Digest("tenant-1")}, []byte("You are a helpful assistant."))
	if want := Key(0xa70280e763862d29); got != want {
		t.Errorf("key = %#x, want %#x", uint64(got), uint64(want))
	}
}

func TestDigest(t *testing.T) {
	if Digest("") != 0 || Digest("a") == 0 || Digest("a") == Digest("b") {
		t.Error("a digest must be 0 for the empty id alone, and tell ids apart")
	}
}
