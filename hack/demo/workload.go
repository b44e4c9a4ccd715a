package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// vocabulary is words that are one token each, near enough, for the simulated engines and for the tiny
// model of the real ones.
var vocabulary = strings.Fields(`careful assistant support desk answer question user words endpoint picker
	sends request replica whose cache holds longest prefix prompt gateway reads body model name messages
	tools headers when two replicas hold same prefix one with shorter queue wins none does any may serve
	weather take city unit give back temperature wind speed short description`)

// workload is the work of one strategy: conversations over shared documents. Each conversation begins
// with a document, as its system prompt, and takes several turns, each with all that was said before.
type workload struct {
	documents     int
	lengths       []int // tokens of a document, in turn
	conversations int   // over each document
	turns         int
	clients       int // conversations at a time
	answer        int // tokens
}

func (w workload) requests() int { return w.documents * w.conversations * w.turns }

func (w workload) String() string {
	lengths := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(w.lengths)), ", "), "[]")
	return fmt.Sprintf("The work, for each strategy in words of its own: %d shared documents of %s\n"+
		"tokens, %d chats over each, %d turns a chat. %d requests from %d clients, three of four streamed.",
		w.documents, lengths, w.conversations, w.turns, w.requests(), w.clients)
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// conversation is what one client asks, turn by turn. The model's answers are scripted, so that every
// strategy is asked the same: turn i sends turns[0] to turns[i], joined.
type conversation struct{ turns [][]message }

// conversationsFor makes the work for one strategy, in the order in which clients take it. The order and
// the sizes depend on the seed alone; the words on the strategy too, so that no strategy finds in the
// engines' caches what another one left there.
func (w workload) conversationsFor(strategy string, seed uint64) []conversation {
	all := make([]conversation, 0, w.documents*w.conversations)
	for d := range w.documents {
		words := rand.New(rand.NewPCG(seed, uint64(d)))
		document := fmt.Sprintf("%s %d %d. %s", strategy, seed, d, text(words, w.lengths[d%len(w.lengths)]))
		for range w.conversations {
			c := conversation{}
			said := []message{{"system", document}}
			for range w.turns {
				c.turns = append(c.turns, append(said, message{"user", text(words, 40)}))
				said = []message{{"assistant", text(words, w.answer)}}
			}
			all = append(all, c)
		}
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// history is what turn i of the conversation sends.
func (c conversation) history(i int) []message {
	var messages []message
	for _, turn := range c.turns[:i+1] {
		messages = append(messages, turn...)
	}
	return messages
}

// text is about so many tokens of random words: the real engines' tokenizer needs 1.05 for one.
func text(r *rand.Rand, tokens int) string {
	words := make([]string, tokens*95/100)
	for i := range words {
		words[i] = vocabulary[r.IntN(len(vocabulary))]
	}
	return strings.Join(words, " ")
}
