// Command sagemaker calls a SageMaker endpoint by the AWS SDK, as an application would, and prints a JSON
// line for each call. Its argument is the URL to use instead of AWS's.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sagemakerruntime"
	"github.com/aws/aws-sdk-go-v2/service/sagemakerruntime/types"
)

// ids is how many PrefixAwareIds are tried.
const ids = 16

// line is what is printed of a call. Calls are made one after the other.
type line struct {
	Call     string `json:"call"`
	ID       string `json:"id"`       // PrefixAwareId, "" for none
	Sent     string `json:"sent"`     // the body
	Received string `json:"received"` // the response's body, its parts joined
	Parts    int    `json:"parts"`    // of a streamed response
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "sagemaker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, url string) error {
	client := sagemakerruntime.New(sagemakerruntime.Options{
		Region:           "us-east-1",
		BaseEndpoint:     aws.String(url),
		RetryMaxAttempts: 1,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIAEXAMPLE", SecretAccessKey: "example"}, nil
		}),
	})
	out := json.NewEncoder(os.Stdout)
	for i := range ids + 1 {
		id := ""
		if i > 0 {
			id = fmt.Sprint("tenant-", i)
		}
		for _, call := range []func(context.Context, *sagemakerruntime.Client, *line) error{invoke, invokeStream} {
			l := line{ID: id, Sent: `{"inputs":"` + string(bytes.Repeat([]byte("All happy families are alike. "), 100)) + `"}`}
			if err := call(ctx, client, &l); err != nil {
				return fmt.Errorf("%s with PrefixAwareId %q: %w", l.Call, id, err)
			}
			if err := out.Encode(l); err != nil {
				return err
			}
		}
	}
	return nil
}

func invoke(ctx context.Context, client *sagemakerruntime.Client, l *line) error {
	l.Call = "InvokeEndpoint"
	resp, err := client.InvokeEndpoint(ctx, &sagemakerruntime.InvokeEndpointInput{
		EndpointName: aws.String("llama"), Body: []byte(l.Sent), ContentType: aws.String("application/json"), PrefixAwareId: optional(l.ID),
	})
	if err != nil {
		return err
	}
	l.Received = string(resp.Body)
	return nil
}

func invokeStream(ctx context.Context, client *sagemakerruntime.Client, l *line) error {
	l.Call = "InvokeEndpointWithResponseStream"
	resp, err := client.InvokeEndpointWithResponseStream(ctx, &sagemakerruntime.InvokeEndpointWithResponseStreamInput{
		EndpointName: aws.String("llama"), Body: []byte(l.Sent), ContentType: aws.String("application/json"), PrefixAwareId: optional(l.ID),
	})
	if err != nil {
		return err
	}
	stream := resp.GetStream()
	defer stream.Close()
	for event := range stream.Events() {
		part, ok := event.(*types.ResponseStreamMemberPayloadPart)
		if !ok {
			return fmt.Errorf("event %T", event)
		}
		l.Received += string(part.Value.Bytes)
		l.Parts++
	}
	return stream.Err()
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
