// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"runtime"

	"megadp/internal/shim"
)

// Edge is what is beyond an end of an array that is cut over ranks.
type Edge int

// The edges.
var (
	EdgeKeep     = Edge(shim.Edge_KEEP)     // what the caller puts there
	EdgeZero     = Edge(shim.Edge_ZERO)     // zero
	EdgePeriodic = Edge(shim.Edge_PERIODIC) // the other end
	EdgeReflect  = Edge(shim.Edge_REFLECT)  // mirrored at the outermost element, which is not repeated
)

// HaloDimension is one dimension of an array that is cut over ranks.
type HaloDimension struct {
	Ranks int64 // that cut it; 1: it is not cut
	Size  int64 // of this rank's part
	Low   int64 // width of the halo before it
	High  int64 // and behind it
	Edge  Edge
}

// HaloOptions are the same on all ranks, but for sizes of parts.
type HaloOptions struct {
	Dimensions []HaloDimension // the outermost first; the innermost varies fastest with the rank
	DType      DType           // any; zero: F32
	Fields     int             // arrays that are exchanged at a time; 0: 1
	Arrays     int64           // that the library makes: Array
	Faces      bool            // no edges and corners: for star-shaped stencils
	Staggered  [][]int         // of fields, from the first on, the dimensions along which they are longer by one element: on the faces of cells
}

// Halo exchanges arrays that are cut over a grid of ranks. Padded arrays have part and halo, flat, dense and row-major. Its exchanges are collective,
// but wait for neighbours alone. What nobody closes is freed some time after it has become unreachable.
type Halo struct {
	*owned[shim.Halo]
	dtype shim.MegadpDType
}

// NewHalo prepares exchanges. Collective over comm; blocking.
func NewHalo(comm *Comm, options HaloOptions) (*Halo, error) {
	raw := shim.NewHaloOptions()
	defer shim.DeleteHaloOptions(raw)
	raw.SetDtype(shim.MegadpDType(options.DType))
	raw.SetFields(options.Fields)
	raw.SetArrays(options.Arrays)
	raw.SetFaces(options.Faces)
	for _, d := range options.Dimensions {
		raw.Add_dimension(d.Ranks, d.Size, d.Low, d.High, shim.MegadpEdge(d.Edge))
	}
	for field, dimensions := range options.Staggered {
		for _, dimension := range dimensions {
			raw.Stagger(field, dimension)
		}
	}
	made, err := ask(comm, func(failure shim.Failure) shim.Halo { return shim.HaloCreate(comm.raw, raw, failure) })
	if err != nil {
		return nil, err
	}
	dtype := shim.MegadpDType(options.DType)
	if options.DType == 0 {
		dtype = shim.DType_F32
	}
	return &Halo{own(made, shim.DeleteHalo), dtype}, nil
}

// Exchange makes the halos of fields what their owners have: as many padded arrays as there are fields, one after another. Bytes stand for any type.
func Exchange[T Number](halo *Halo, fields []T) error { return exchange(halo, fields, false) }

// ExchangeBackward is the adjoint: what is in the halos is added to where it came from, in the order of ranks, and becomes 0; kept edges stay.
func ExchangeBackward[T Number](halo *Halo, fields []T) error { return exchange(halo, fields, true) }

func exchange[T Number](halo *Halo, fields []T, backward bool) error {
	if given := dtypeOf[T](); given != halo.dtype && given != shim.DType_U8 {
		return &Error{ErrInvalid, "MDP_E_INVALID", "the elements are not of the halo's DType", -1, -1, -1, 0}
	}
	data, size := bytesOf(fields)
	return call(halo, func(failure shim.Failure) { halo.raw.Exchange(data, size, backward, failure) })
}

// Array is a padded array of the library's, zero at first, by its number from 0. Much that neighbours on the node need of these they read there.
func (h *Halo) Array(index int64) (*View, error) {
	return newView(ask(h, func(failure shim.Failure) shim.View { return h.raw.Array(index, failure) }))
}

// Start sends off what neighbours need of the library's arrays from number first on, as many as there are fields. Until Finish only their inside may be
// read, what needs no halo. With backward it is the adjoint, as ExchangeBackward.
func (h *Halo) Start(first int64, backward bool) error {
	return call(h, func(failure shim.Failure) { h.raw.Start(first, backward, failure) })
}

// Finish waits for the neighbours, and brings what they have sent to its place.
func (h *Halo) Finish() error {
	return call(h, h.raw.Finish)
}

// Place is, of a dimension, this rank's place in the grid, where its part begins, and the size of the whole.
func (h *Halo) Place(dimension int) (place, begin, whole int64, err error) {
	for _, one := range []struct {
		to  *int64
		get func(int, shim.Failure) int64
	}{{&place, h.raw.Place}, {&begin, h.raw.Part_begin}, {&whole, h.raw.Whole_size}} {
		if *one.to, err = ask(h, func(failure shim.Failure) int64 { return one.get(dimension, failure) }); err != nil {
			return 0, 0, 0, err
		}
	}
	return place, begin, whole, nil
}

// Close drops the handle. Views of its arrays stay.
func (h *Halo) Close() error {
	h.raw.Close()
	runtime.KeepAlive(h)
	return nil
}

// Conv is a convolution or pooling along one dimension that is cut into parts; 0: 1 of Kernel, Stride and Dilation.
type Conv struct {
	Kernel, Stride, Dilation int64
	PaddingLow, PaddingHigh  int64 // zeros before and behind the whole input
	Parts                    []int64
}

// ConvPart is what one rank computes of a Conv. Counted from 0.
type ConvPart struct {
	Low, High               int64 // widths of the halo, the same on all ranks
	OutputBegin, OutputSize int64 // this rank's outputs
	First                   int64 // element of the padded part at which the first output's window begins
	InsideBegin, InsideSize int64 // of its outputs those that need no halo
	WholeOutput             int64
}

// Split says what the rank with number part computes: each output is computed by the rank that has the element at output * stride, by the last one
// beyond. Local.
func (c Conv) Split(part int) (ConvPart, error) {
	raw := shim.NewConvOptions()
	defer shim.DeleteConvOptions(raw)
	raw.SetKernel(c.Kernel)
	raw.SetStride(c.Stride)
	raw.SetDilation(c.Dilation)
	raw.SetPadding_low(c.PaddingLow)
	raw.SetPadding_high(c.PaddingHigh)
	for _, size := range c.Parts {
		raw.Add_part(size)
	}
	found, err := ask(nil, func(failure shim.Failure) shim.ConvPart { return shim.HaloConv_split(raw, part, failure) })
	if err != nil {
		return ConvPart{}, err
	}
	defer shim.DeleteConvPart(found)
	return ConvPart{found.GetLow(), found.GetHigh(), found.GetOutput_begin(), found.GetOutput_size(), found.GetFirst(),
		found.GetInside_begin(), found.GetInside_size(), found.GetWhole_output()}, nil
}
