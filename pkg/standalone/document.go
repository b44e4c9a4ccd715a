package standalone

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// document is one YAML document of a file.
type document struct {
	file string // its path
	node *yaml.Node
	// object is the document as JSON decodes it, defaults filled in by its schema.
	object map[string]any
}

// Error is one thing wrong with a configuration, and where.
type Error struct {
	File    string
	Line    int // 0 if unknown
	Message string
}

func (e Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return e.File + ":" + strconv.Itoa(e.Line) + ": " + e.Message
}

// Errors are all that is wrong with a configuration, sorted by file and line.
type Errors []Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Message, b.Message))
	})
}

// parseFile splits a file into its documents. Empty ones are left out.
func parseFile(file string, content []byte) ([]document, *Error) {
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var docs []document
	for {
		var root yaml.Node
		err := decoder.Decode(&root)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, yamlError(file, err)
		}
		if root.Kind != yaml.DocumentNode || len(root.Content) == 0 || root.Content[0].ShortTag() == "!!null" {
			continue
		}
		doc := document{file: file, node: root.Content[0]}
		if doc.node.Kind != yaml.MappingNode {
			return nil, &Error{file, doc.node.Line, "a document must be a mapping that starts with apiVersion and kind"}
		}
		if doc.object, err = toJSON(doc.node); err != nil {
			return nil, yamlError(file, err)
		}
		docs = append(docs, doc)
	}
}

// yamlLine finds the line in an error of the YAML library.
var yamlLine = regexp.MustCompile(`^(?:unmarshal errors:\s*)?line (\d+): `)

func yamlError(file string, err error) *Error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	text, _, _ = strings.Cut(text, "\n")
	return &Error{file, line, "not YAML: " + text}
}

// toJSON decodes a mapping the way an API server would see it after kubectl: keys are strings, dates
// are strings, integers are int64.
func toJSON(node *yaml.Node) (map[string]any, error) {
	plain(node, map[*yaml.Node]bool{})
	var value map[string]any
	if err := node.Decode(&value); err != nil {
		return nil, err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", node.Line, err)
	}
	var object map[string]any
	return object, utiljson.Unmarshal(text, &object)
}

// plain takes from a tree the types that JSON does not have.
func plain(node *yaml.Node, seen map[*yaml.Node]bool) {
	if node == nil || seen[node] {
		return
	}
	seen[node] = true
	if node.Kind == yaml.ScalarNode && node.ShortTag() == "!!timestamp" {
		node.Tag = "!!str"
	}
	for i, child := range node.Content {
		if node.Kind == yaml.MappingNode && i%2 == 0 && child.Kind == yaml.ScalarNode && child.ShortTag() != "!!merge" {
			child.Tag = "!!str"
		}
		plain(child, seen)
	}
}

// at is the error of a field of this document.
func (d *document) at(field, message string) Error {
	if field != "" {
		message = field + ": " + message
	}
	return Error{d.file, d.line(field), message}
}

// line is where a field is, or the nearest parent that the file has.
func (d *document) line(field string) int {
	path := strings.NewReplacer("[", ".", "]", "").Replace(field)
	return cmp.Or(findLine(d.node, path), d.node.Line)
}

// findLine is where the value of a dotted path begins, 0 if nothing of it is there. Keys may contain
// dots themselves.
func findLine(node *yaml.Node, path string) int {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			if path == key.Value {
				return key.Line
			}
			if rest, ok := strings.CutPrefix(path, key.Value+"."); ok {
				return cmp.Or(findLine(value, rest), key.Line)
			}
		}
	case yaml.SequenceNode:
		head, rest, _ := strings.Cut(path, ".")
		if i, err := strconv.Atoi(head); err == nil && i >= 0 && i < len(node.Content) {
			return cmp.Or(findLine(node.Content[i], rest), node.Content[i].Line)
		}
	}
	return 0
}
