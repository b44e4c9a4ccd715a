package extproc

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errDrained ends a stream that was through when the service drained.
var errDrained = errors.New("drained")

// idle is the set of streams that are through and wait for what else may come. docs/decisions/drain.md
// says why there is one.
type idle struct {
	mu       sync.Mutex
	draining bool                 // guarded by mu
	streams  map[*stream]struct{} // guarded by mu
}

// enter adds a stream. It says false once the service drains: the stream is then to be ended.
func (i *idle) enter(st *stream) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.draining {
		i.streams[st] = struct{}{}
	}
	return !i.draining
}

// leave takes a stream out. It says false if the stream was ended meanwhile.
func (i *idle) leave(st *stream) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, in := i.streams[st]
	delete(i.streams, st)
	return in
}

// Drain ends every stream that is through, at once, and the others as soon as they are. Nothing is lost by
// it: a gateway whose stream ends well proceeds without the picker, says the protocol. Only requests whose
// response passes through in full duplex keep their stream to the end.
func (s *Service) Drain() {
	s.idle.mu.Lock()
	defer s.idle.mu.Unlock()
	s.idle.draining = true
	for st := range s.idle.streams {
		if endWell(st.rpc.Context()) {
			delete(s.idle.streams, st)
		}
	}
}

// endWell ends a stream with status OK while its handler waits in RecvMsg, which then returns. gRPC has no
// public way to do that, but its transport streams have this method, which other goroutines than the handler's
// may call. Without it the stream goes on until its next message, and endWell says false.
func endWell(ctx context.Context) bool {
	transport, ok := grpc.ServerTransportStreamFromContext(ctx).(interface {
		WriteStatus(*status.Status) error
	})
	if ok {
		_ = transport.WriteStatus(status.New(codes.OK, "")) // fails if the connection was lost, which is an end too
	}
	return ok
}

// through holds once the gateway can do without the picker. As Envoy 1.40.0 shows, that is not so while
// bytes of a body are on their way through the picker: in full duplex they are lost, and of a request's
// streamed body it sends what came before a second time, if its route has retries.
func (st *stream) through() bool {
	return st.phase > phaseRequest && !st.modes.duplexResponse() && (st.requestEnded || !st.modes.chunkedRequest())
}

// receive waits for the next message.
func (st *stream) receive() error {
	if !st.through() {
		return st.rpc.RecvMsg(&st.in)
	}
	if !st.service.idle.enter(st) {
		return errDrained
	}
	err := st.rpc.RecvMsg(&st.in)
	if !st.service.idle.leave(st) {
		return errDrained
	}
	return err
}
