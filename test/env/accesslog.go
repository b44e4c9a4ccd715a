package env

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Access is a line of Envoy's access log, as config/envoy formats it.
type Access struct {
	Method, Path string
	Status       int
	Flags        string // why Envoy did not answer as the model server did, "-" if it did
	Picked       string // the endpoint that the picker named and its fallbacks, ip:port,ip:port...
	Served       string // ip:port
	Attempts     int
}

// AccessLog is the requests that have ended so far. Envoy writes each line some time after its request.
func (e *Envoy) AccessLog() ([]Access, error) {
	var log []Access
	for line := range strings.Lines(e.Log()) {
		if !strings.HasPrefix(line, "{") || !strings.HasSuffix(line, "}\n") { // a warning, or not yet whole
			continue
		}
		var a Access
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			return nil, fmt.Errorf("access log: %w: %s", err, line)
		}
		log = append(log, a)
	}
	return log, nil
}
