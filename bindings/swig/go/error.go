// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"context"
	"fmt"
	"runtime"

	"megadp/internal/shim"
)

// Status is what became of a call, as mdp_status in megadp.h. It is an error, so that errors.Is(err, megadp.ErrPeer) works.
type Status int

// The statuses of errors. docs/errors.md says what each means and what to do.
var (
	ErrInvalid     = Status(shim.Status_E_INVALID)     // an argument is wrong
	ErrState       = Status(shim.Status_E_STATE)       // right arguments, wrong moment
	ErrUnsupported = Status(shim.Status_E_UNSUPPORTED) // not offered by this build, backend or machine
	ErrMemory      = Status(shim.Status_E_MEMORY)      // out of memory
	ErrSystem      = Status(shim.Status_E_SYSTEM)      // an operating-system call failed
	ErrBackend     = Status(shim.Status_E_BACKEND)     // a device or transport library failed
	ErrPeer        = Status(shim.Status_E_PEER)        // another rank died or left
	ErrTimeout     = Status(shim.Status_E_TIMEOUT)     // another rank did not come in time
	ErrDesync      = Status(shim.Status_E_DESYNC)      // ranks called different operations
	ErrAborted     = Status(shim.Status_E_ABORTED)     // Comm.Abort was called, here or on another rank
	ErrNumeric     = Status(shim.Status_E_NUMERIC)     // a value is not finite
	ErrCorrupt     = Status(shim.Status_E_CORRUPT)     // stored or received bytes are damaged
	ErrInternal    = Status(shim.Status_E_INTERNAL)    // a defect of the library
)

func (s Status) Error() string { return fmt.Sprintf("megadp status %d", int(s)) }

// Error is a failed call. Rank (in the world), Bucket and Param are -1 and Operation is 0 where they are not what the failure is about.
type Error struct {
	Code      Status
	Name      string // "MDP_E_PEER" and so on
	Text      string // the sentence that explains it
	Rank      int
	Bucket    int
	Param     int64
	Operation int64
}

func (e *Error) Error() string { return e.Name + ": " + e.Text }

// Is says whether target is this error's status.
func (e *Error) Is(target error) bool {
	status, ok := target.(Status)
	return ok && status == e.Code
}

func errorFrom(failure shim.Failure) error {
	if !failure.Failed() {
		return nil
	}
	return &Error{
		Code:      Status(failure.GetCode()),
		Name:      failure.Name(),
		Text:      failure.GetText(),
		Rank:      failure.GetRank(),
		Bucket:    failure.GetBucket(),
		Param:     failure.GetParam(),
		Operation: failure.GetOperation(),
	}
}

// owned is what a handle points to. The finalizer is of this and not of the handle, of which a program may have copies.
type owned[T any] struct {
	raw T
}

func own[T any](raw T, free func(T)) *owned[T] {
	it := &owned[T]{raw}
	runtime.SetFinalizer(it, func(it *owned[T]) { free(it.raw) })
	return it
}

// call makes one native call; object, whose finalizer would free what the call works on, is kept until it has returned.
func call(object any, native func(shim.Failure)) error {
	failure := shim.NewFailure()
	defer shim.DeleteFailure(failure)
	native(failure)
	runtime.KeepAlive(object)
	return errorFrom(failure)
}

// ask is a call with an answer, which is the zero value when there is an error.
func ask[T any](object any, native func(shim.Failure) T) (T, error) {
	var answer T
	err := call(object, func(failure shim.Failure) { answer = native(failure) })
	if err != nil {
		var none T
		return none, err
	}
	return answer, nil
}

// resumed is such a slice, told each time whether it goes on with what this call's first one has begun.
func resumed(slice func(bool, shim.Failure) bool) func(shim.Failure) bool {
	again := false
	return func(failure shim.Failure) bool {
		defer func() { again = true }()
		return slice(again, failure)
	}
}

// inSlices calls slice, which blocks for at most 50 ms and says whether it has finished, until it has or ctx is over.
func inSlices(ctx context.Context, object any, slice func(shim.Failure) bool) error {
	for {
		done, err := ask(object, slice)
		if done || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
