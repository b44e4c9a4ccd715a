package schema

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuralcel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/homing-dev/homing/config/crd"
)

// DefaultNamespace is the namespace of a document that names none.
const DefaultNamespace = "default"

var (
	//go:embed inference.networking.k8s.io_inferencepools.yaml
	inferencePool []byte
	//go:embed homing.dev_staticendpoints.yaml
	staticEndpoints []byte
)

// Error is one thing wrong with a document.
type Error struct {
	// Field is the path of the field, "spec.prefixLength"; empty for the document as a whole.
	Field   string
	Message string
}

func (e Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Schema is the rules for one kind.
type Schema struct {
	structural *structural.Structural
	openAPI    validation.SchemaValidator
	cel        *structuralcel.Validator
}

// Set is the rules for every kind a file may hold, by "apiVersion, kind".
type Set map[string]*Schema

// NewSet compiles the embedded schemas. An error means that this binary was built wrong.
func NewSet() (Set, error) {
	set := Set{}
	for _, source := range [][]byte{crd.PrefixRoutingPolicy, inferencePool, staticEndpoints} {
		if err := set.add(source); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// add compiles the schema of a CustomResourceDefinition with one version.
func (set Set) add(source []byte) error {
	var def apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(source, &def); err != nil {
		return fmt.Errorf("reading embedded schema: %w", err)
	}
	version := def.Spec.Versions[0]
	var props apiextensions.JSONSchemaProps
	err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &props, nil)
	if err != nil {
		return fmt.Errorf("converting schema of %s: %w", def.Spec.Names.Kind, err)
	}
	s := &Schema{}
	if s.structural, err = structural.NewStructural(&props); err != nil {
		return fmt.Errorf("compiling schema of %s: %w", def.Spec.Names.Kind, err)
	}
	if s.openAPI, _, err = validation.NewSchemaValidator(&props); err != nil {
		return fmt.Errorf("compiling schema of %s: %w", def.Spec.Names.Kind, err)
	}
	s.cel = structuralcel.NewValidator(s.structural, true, celconfig.PerCallLimit)
	set[Key(def.Spec.Group+"/"+version.Name, def.Spec.Names.Kind)] = s
	return nil
}

// Key is a kind's key in a [Set].
func Key(apiVersion, kind string) string { return apiVersion + ", " + kind }

// Kinds lists the kinds of a set, for people to read.
func (set Set) Kinds() string {
	kinds := make([]string, 0, len(set))
	for key := range set {
		apiVersion, kind, _ := strings.Cut(key, ", ")
		kinds = append(kinds, kind+" ("+apiVersion+")")
	}
	slices.Sort(kinds)
	return strings.Join(kinds, ", ")
}

// Check says all that is wrong with an object, in no order, and fills in its namespace and defaults in
// place. The object must be as decoded from JSON, with integers as int64.
func (s *Schema) Check(obj map[string]any) []Error {
	var errs []Error
	for _, path := range pruning.PruneWithOptions(obj, s.structural, true, structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		errs = append(errs, Error{path, "unknown field" + s.siblings(path)})
	}
	errs = append(errs, checkMeta(obj)...)
	defaulting.Default(obj, s.structural)
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, s.structural)

	ctx := context.Background()
	found := validation.ValidateCustomResource(nil, obj, s.openAPI)
	found = append(found, objectmeta.Validate(ctx, nil, obj, s.structural, true)...)
	found = append(found, listtype.ValidateListSetsAndMaps(nil, s.structural, obj)...)
	if s.cel != nil && !slices.ContainsFunc(found, blocksCEL) {
		more, _ := s.cel.Validate(ctx, nil, s.structural, obj, nil, celconfig.RuntimeCELCostBudget)
		found = append(found, more...)
	}
	for _, e := range found {
		errs = append(errs, Error{e.Field, e.ErrorBody()})
	}
	return errs
}

// blocksCEL is when an API server does not run CEL rules either: they may not hold on such an object.
func blocksCEL(e *field.Error) bool {
	switch e.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}

// checkMeta checks metadata as an API server does on creation, where a namespace is always known.
func checkMeta(obj map[string]any) []Error {
	meta, found, unknown, err := objectmeta.GetObjectMetaWithOptions(obj, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	switch {
	case err != nil:
		return []Error{{"metadata", err.Error()}}
	case !found:
		return []Error{{"metadata.name", "Required value"}}
	}
	var errs []Error
	for _, path := range unknown {
		errs = append(errs, Error{path, "unknown field"})
	}
	if meta.Namespace == "" {
		meta.Namespace = DefaultNamespace
	}
	for _, e := range metavalidation.ValidateObjectMeta(meta, true, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata")) {
		errs = append(errs, Error{e.Field, e.ErrorBody()})
	}
	if err := objectmeta.SetObjectMeta(obj, meta); err != nil {
		errs = append(errs, Error{"metadata", err.Error()})
	}
	return errs
}

// siblings names the fields that are known where an unknown one was found.
func (s *Schema) siblings(path string) string {
	at := s.structural
	parts := strings.Split(path, ".")
	for _, part := range parts[:len(parts)-1] {
		name, index, _ := strings.Cut(part, "[")
		prop, ok := at.Properties[name]
		if !ok {
			return ""
		}
		at = &prop
		for range strings.Count(index, "]") {
			if at.Items == nil { // the document has a list where there is none
				return ""
			}
			at = at.Items
		}
	}
	names := make([]string, 0, len(at.Properties))
	for name := range at.Properties {
		names = append(names, name)
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return "; want " + strings.Join(names, ", ")
}
