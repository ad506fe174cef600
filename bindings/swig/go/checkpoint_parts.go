// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"runtime"

	"megadp/internal/shim"
)

// CheckpointParts is what one checkpoint is of: buffers of the same ranks, with their optimizers, and arrays of the program's own. To be
// filled alike on all ranks, once; it serves any number of saves and loads. Names are unique in all of it.
type CheckpointParts struct {
	*owned[shim.CheckpointParts]
}

// NewCheckpointParts has nothing in it yet.
func NewCheckpointParts() *CheckpointParts {
	return &CheckpointParts{own(shim.NewCheckpointParts(), shim.DeleteCheckpointParts)}
}

// Add adds a buffer and its optimizers. Without any it is saved and loaded without their state.
func (p *CheckpointParts) Add(buffer *Buffer, optimizers ...*Optimizer) {
	if len(optimizers) == 0 {
		p.raw.Add_buffer(buffer.raw)
	}
	for _, optimizer := range optimizers {
		p.raw.Add(buffer.raw, optimizer.raw)
	}
	runtime.KeepAlive(p)
	runtime.KeepAlive(buffer)
	runtime.KeepAlive(optimizers)
}

// AddTensor adds an array of the program's own, such as a frozen parameter or a module's buffer, by Name, DType, Shape and placement; the
// other fields are not looked at. Its memory, zero at first, is what the view has: what is saved, and where is loaded to.
func (p *CheckpointParts) AddTensor(param Param) (*View, error) {
	raw := param.raw()
	defer shim.DeleteParam(raw)
	return newView(ask(p, func(failure shim.Failure) shim.View { return p.raw.Add_tensor(raw, failure) }))
}

// Save saves as SaveCheckpoint. Collective over the world of the first buffer.
func (p *CheckpointParts) Save(directory string, options SaveOptions) error {
	raw := options.raw()
	defer shim.DeleteCheckpointOptions(raw)
	return call(p, func(failure shim.Failure) { p.raw.Save(directory, raw, failure) })
}

// StartSave saves as StartSaveCheckpoint, while training goes on. Collective.
func (p *CheckpointParts) StartSave(directory string, options SaveOptions) (*Request, error) {
	raw := options.raw()
	defer shim.DeleteCheckpointOptions(raw)
	return newRequest(ask(p, func(failure shim.Failure) shim.Request { return p.raw.Start_save(directory, raw, failure) }))
}

// Load loads as LoadCheckpoint. Collective.
func (p *CheckpointParts) Load(directory string, options LoadOptions) error {
	raw := options.raw()
	defer shim.DeleteCheckpointOptions(raw)
	return call(p, func(failure shim.Failure) { p.raw.Load(directory, raw, failure) })
}
