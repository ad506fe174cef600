// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"runtime"
	"unsafe"

	"megadp/internal/shim"
)

// View is library memory of a parameter, a gradient, a piece of optimizer state or a checkpoint's tensor, flat and row-major. Its slices stay valid until Close,
// whatever else has been closed or collected; Go's collector cannot see who still uses them, so a View that is not closed keeps its memory.
type View struct {
	*lent
}

// lent is what a View points to, and all copies of it do.
type lent struct {
	raw  shim.View
	open bool
}

func newView(raw shim.View, err error) (*View, error) {
	if err != nil {
		return nil, err
	}
	return &View{&lent{raw, true}}, nil
}

// DType is the type of the elements.
func (v *View) DType() DType {
	if !v.open {
		return 0
	}
	return DType(v.raw.Dtype())
}

// Bytes is the memory itself; nil after Close.
func (v *View) Bytes() []byte {
	if !v.open || v.raw.Size() == 0 {
		return nil
	}
	size := int64(4)
	switch v.DType() {
	case F64, I64:
		size = 8
	case BF16, F16:
		size = 2
	case U8:
		size = 1
	}
	memory, err := ask(v, func(failure shim.Failure) shim.Memory { return v.raw.Memory(0, v.raw.Size()*size, failure) })
	if err != nil {
		return nil
	}
	defer shim.DeleteMemory(memory)
	return unsafe.Slice(memory.GetData(), memory.GetBytes())
}

// Float32s is the memory of a view of F32; nil for other types and after Close.
func (v *View) Float32s() []float32 {
	bytes := v.Bytes()
	if len(bytes) == 0 || v.DType() != F32 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&bytes[0])), len(bytes)/4)
}

// Close gives the memory back: its slices must not be used any more.
func (v *View) Close() error {
	if v.open {
		v.open = false
		shim.DeleteView(v.raw)
	}
	runtime.KeepAlive(v)
	return nil
}
