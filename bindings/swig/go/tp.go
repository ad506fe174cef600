// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"runtime"

	"megadp/internal/shim"
)

// TpSplit says which dimension of a linear layer's weight is cut over the ranks.
type TpSplit int

// Column: each rank computes some features of the output. Row: each computes a part of the sum that makes it.
var (
	Column = TpSplit(shim.TpSplit_COLUMN)
	Row    = TpSplit(shim.TpSplit_ROW)
)

// TpGrad is the gradient that comes back of what is the same on all ranks: to take the one for the other gives wrong numbers without a word.
type TpGrad int

// Partial: each rank's is a part, and they are summed. OnAll: it is the same on all ranks.
var (
	Partial = TpGrad(shim.TpGrad_PARTIAL)
	OnAll   = TpGrad(shim.TpGrad_REPLICATED)
)

// TpLinearOptions describe a layer y = x W^T + b, the same on all ranks. Zero is the default; Split and sizes must be said, and Grad where y is
// the same on all ranks (Row without Sequence, GatherOutput).
type TpLinearOptions struct {
	Split           TpSplit
	InFeatures      int64 // of the whole layer
	OutFeatures     int64
	DType           DType   // F32, or BF16, whose sums are F32
	Grad            TpGrad  // what comes back of y where that is the same on all ranks
	Blocks          []int64 // sizes, along what is cut, of what is fused (q, k, v): each is cut by itself
	Bias            bool    // has one: added once, to the sum
	Transposed      bool    // the weight is in x out, not out x in
	Sequence        bool    // x (Column) or y (Row) is cut along the sequence, the outermost dimension, outside the layer
	GatherOutput    bool    // Column: y is whole on all ranks
	WholeInput      bool    // Row: x is whole on all ranks
	CheckReplicated bool    // compare over the ranks what should be the same on all; for debugging
}

func (o TpLinearOptions) raw() shim.TpLinearOptions {
	raw := shim.NewTpLinearOptions()
	raw.SetSplit(shim.MegadpTpSplit(o.Split))
	raw.SetIn_features(o.InFeatures)
	raw.SetOut_features(o.OutFeatures)
	raw.SetDtype(shim.MegadpDType(o.DType))
	raw.SetGrad(shim.MegadpTpGrad(o.Grad))
	for _, size := range o.Blocks {
		raw.Add_block(size)
	}
	raw.SetBias(o.Bias)
	raw.SetTransposed(o.Transposed)
	raw.SetSequence(o.Sequence)
	raw.SetGather_output(o.GatherOutput)
	raw.SetWhole_input(o.WholeInput)
	raw.SetCheck_replicated(o.CheckReplicated)
	return raw
}

// TpLinear is a linear layer whose weight is cut over the ranks of a communicator. Arrays are flat, dense and row-major, with features as the last
// dimension. Its calls are collective, in the order of the communicator's other collectives, and block. What nobody closes is freed some
// time after it has become unreachable.
type TpLinear struct {
	*owned[shim.TpLinear]
}

func newTpLinear(on any, options TpLinearOptions, create func(shim.TpLinearOptions, shim.Failure) shim.TpLinear) (*TpLinear, error) {
	raw := options.raw()
	defer shim.DeleteTpLinearOptions(raw)
	made, err := ask(on, func(failure shim.Failure) shim.TpLinear { return create(raw, failure) })
	if err != nil {
		return nil, err
	}
	return &TpLinear{own(made, shim.DeleteTpLinear)}, nil
}

// NewTpLinear makes a layer of arrays that are given to each call. Collective. ErrUnsupported where there is no library for products
// (OpenBLAS, oneDNN).
func NewTpLinear(comm *Comm, options TpLinearOptions) (*TpLinear, error) {
	return newTpLinear(comm, options, func(raw shim.TpLinearOptions, failure shim.Failure) shim.TpLinear {
		return shim.TpLinearCreate(comm.raw, raw, failure)
	})
}

// NewTpLinearIn makes a layer of parameters of a buffer, each a rank's part, Sharded over the same ranks (the bias of Row: Replicated, with Sequence
// PartialSum). bias counts with options.Bias only. What is frozen there is given to each call. Collective.
func NewTpLinearIn(comm *Comm, buffer *Buffer, weight, bias int, options TpLinearOptions) (*TpLinear, error) {
	layer, err := newTpLinear(comm, options, func(raw shim.TpLinearOptions, failure shim.Failure) shim.TpLinear {
		return shim.TpLinearCreate_in(comm.raw, buffer.raw, int64(weight), int64(bias), raw, failure)
	})
	runtime.KeepAlive(buffer)
	return layer, err
}

// optional is a slice as the shim takes it; nil: not given, or not wanted.
func optional[T Number](values []T) (*byte, int64) {
	if values == nil {
		return nil, 0
	}
	return bytesOf(values)
}

// Feature is an element of a layer's arrays: F32, or the bytes of BF16.
type Feature interface {
	float32 | uint8
}

// Forward writes the output of a layer. weight and bias are nil where they are parameters of a buffer, bias where there is none. The caller
// keeps the input for Backward.
func Forward[T Feature](layer *TpLinear, input, weight, bias, output []T) error {
	x, xBytes := optional(input)
	w, wBytes := optional(weight)
	b, bBytes := optional(bias)
	y, yBytes := optional(output)
	return call(layer, func(failure shim.Failure) {
		layer.raw.Forward(x, xBytes, w, wBytes, b, bBytes, y, yBytes, failure)
	})
}

// TpSaved is a copy of an input, for one BackwardSaved.
type TpSaved struct {
	*owned[shim.TpSaved]
}

// ForwardSaving is Forward that keeps a copy of the input.
func ForwardSaving[T Feature](layer *TpLinear, input, weight, bias, output []T) (*TpSaved, error) {
	x, xBytes := optional(input)
	w, wBytes := optional(weight)
	b, bBytes := optional(bias)
	y, yBytes := optional(output)
	made, err := ask(layer, func(failure shim.Failure) shim.TpSaved {
		return layer.raw.Forward_saving(x, xBytes, w, wBytes, b, bBytes, y, yBytes, failure)
	})
	if err != nil {
		return nil, err
	}
	return &TpSaved{own(made, shim.DeleteTpSaved)}, nil
}

// Close drops it, with the memory it holds.
func (s *TpSaved) Close() error {
	s.raw.Close()
	runtime.KeepAlive(s)
	return nil
}

// Gradients are where Backward writes them; nil: not wanted. Those of a buffer's parameters go where they belong and count as ready.
type Gradients[T Feature] struct {
	Input  []T
	Weight []float32
	Bias   []float32
	Add    bool // to what is in Weight and Bias
}

// Backward computes gradients from that of the output. input is that of the forward; nil if the weight needs no gradient.
func Backward[T Feature](layer *TpLinear, input, weight, gradOutput []T, gradients Gradients[T]) error {
	x, xBytes := optional(input)
	return backward(layer, weight, gradOutput, gradients, func(w *byte, wBytes int64, dy *byte, dyBytes int64, to targets, failure shim.Failure) {
		layer.raw.Backward(x, xBytes, w, wBytes, dy, dyBytes, to.dx, to.dxBytes, to.dw, to.dwBytes, to.db, to.dbBytes, gradients.Add, failure)
	})
}

// BackwardSaved is Backward with the input that ForwardSaving has kept.
func BackwardSaved[T Feature](layer *TpLinear, saved *TpSaved, weight, gradOutput []T, gradients Gradients[T]) error {
	err := backward(layer, weight, gradOutput, gradients, func(w *byte, wBytes int64, dy *byte, dyBytes int64, to targets, failure shim.Failure) {
		layer.raw.Backward_saved(saved.raw, w, wBytes, dy, dyBytes, to.dx, to.dxBytes, to.dw, to.dwBytes, to.db, to.dbBytes, gradients.Add, failure)
	})
	runtime.KeepAlive(saved)
	return err
}

// targets are gradients as the shim takes them.
type targets struct {
	dx, dw, db                *byte
	dxBytes, dwBytes, dbBytes int64
}

func backward[T Feature](layer *TpLinear, weight, gradOutput []T, gradients Gradients[T],
	run func(w *byte, wBytes int64, dy *byte, dyBytes int64, to targets, failure shim.Failure)) error {
	w, wBytes := optional(weight)
	dy, dyBytes := optional(gradOutput)
	var to targets
	to.dx, to.dxBytes = optional(gradients.Input)
	to.dw, to.dwBytes = optional(gradients.Weight)
	to.db, to.dbBytes = optional(gradients.Bias)
	return call(layer, func(failure shim.Failure) { run(w, wBytes, dy, dyBytes, to, failure) })
}

// Close drops the handle.
func (l *TpLinear) Close() error {
	l.raw.Close()
	runtime.KeepAlive(l)
	return nil
}
