package picker

import (
	"math/rand/v2"
	"testing"
)

func TestSpeedFollowsTheFastestAnswers(t *testing.T) {
	const actual = 100_000. // bytes a second
	r := rand.New(rand.NewPCG(1, 2))
	var s speed
	for range 20_000 {
		bytes := 20_000 + r.IntN(100_000)
		took := float64(bytes)/actual + r.ExpFloat64()*2 // the answer itself
		s.learn(float64(bytes), int64(bytes), took, false)
	}
	if got := s.drain(); got < actual/3 || got > actual*1.1 {
		t.Errorf("learned %.0f bytes a second, want somewhat under %.0f", got, actual)
	}
}

func TestAFewAnswersAreEnoughToKnowTheSpeed(t *testing.T) {
	var s speed
	s.learn(200, 200, 1, false) // a short prompt with a long answer
	for range 15 {
		s.learn(2000, 2000, .1, false)
	}
	if got := s.drain(); got < 15_000 {
		t.Errorf("learned %.0f bytes a second from 16 answers, all but the first of 20000", got)
	}
}

// A client that leaves at once ends an answer before its prompt is computed.
func TestOneAnswerCutShortIsNotBelieved(t *testing.T) {
	for at := range rateFirst {
		var s speed
		for i := range rateFirst {
			took := 1.
			if i == at {
				took = .001
			}
			s.learn(50_000, 50_000, took, false)
		}
		if got := s.drain(); got != 50_000 {
			t.Errorf("answer %d was cut short, and %v bytes a second were learned, want 50000", at, got)
		}
	}
}

func TestSpeedIsNotUsedWhereFirstTokensAreSeen(t *testing.T) {
	var s speed
	if s.drain() != 0 {
		t.Error("something is known before the first answer")
	}
	s.learn(1000, 1000, 1, false)
	s.learn(1000, 1000, 1, false)
	if got := s.drain(); got != 1000 {
		t.Errorf("after two answers %v bytes a second, want 1000", got)
	}
	for range 100 {
		s.learn(1000, 1000, 1, true)
	}
	if got := s.drain(); got != 0 {
		t.Errorf("%v bytes a second although first tokens tell", got)
	}
	s.learn(1000, 1000, 0, true) // a clock that stands still teaches nothing
	for range 100 {
		s.learn(1000, 1000, 1, false)
	}
	if s.drain() == 0 {
		t.Error("ends alone are seen again, and the rate is not used")
	}
}
