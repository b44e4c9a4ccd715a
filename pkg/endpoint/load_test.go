package endpoint

import (
	"math"
	"sync"
	"testing"
	"time"
	"unsafe"
)

func TestMomentsWrap(t *testing.T) {
	for _, test := range []struct {
		now, then Moment
		want      float64
	}{
		{256, 0, 1},
		{MomentOf(time.Minute), MomentOf(59 * time.Second), 1},
		{128, math.MaxUint32 - 127, 1},
		{0, 256, 0}, // the earlier of the two
	} {
		if got := test.now.Since(test.then); got != test.want {
			t.Errorf("%d since %d = %v s, want %v", test.now, test.then, got, test.want)
		}
	}
}

func TestReadingsLoseNoUpdate(t *testing.T) {
	var r Reading
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				r.Update(512, func(value, elapsed float64) float64 { return value + 1 })
			}
		})
	}
	wg.Wait()
	if value, at := r.Load(); value != 8000 || at != 512 {
		t.Errorf("%v at %d after 8000 updates at 512", value, at)
	}
	r.Update(768, func(value, elapsed float64) float64 { return value * elapsed })
	if value, _ := r.Load(); value != 8000 {
		t.Errorf("a second is told as %v", value/8000)
	}
}

func TestALoadFillsACacheLine(t *testing.T) {
	if got := unsafe.Sizeof(Load{}); got != 64 {
		t.Errorf("a Load has %d bytes, want 64", got)
	}
}
