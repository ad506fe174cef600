// SPDX-License-Identifier: Apache-2.0

package megadp

import "megadp/internal/shim"

// RegionKind is an operator between what is replicated and what is cut over ranks.
type RegionKind int

// The operators, forward; docs/bindings.md names them in other languages.
var (
	RegionCopy          = RegionKind(shim.TpRegion_COPY)           // replicated: the same on
	RegionReduce        = RegionKind(shim.TpRegion_REDUCE)         // to the sum over ranks, on all of them
	RegionScatter       = RegionKind(shim.TpRegion_SCATTER)        // replicated to cut: each keeps its part
	RegionGather        = RegionKind(shim.TpRegion_GATHER)         // cut to replicated: all parts together
	RegionReduceScatter = RegionKind(shim.TpRegion_REDUCE_SCATTER) // to this rank's part of the sum over ranks
	RegionExchange      = RegionKind(shim.TpRegion_EXCHANGE)       // cut along Dim to cut along ToDim
)

// Region is an operator on dense row-major arrays. Grad must be said of RegionCopy, RegionReduce and RegionGather. Dimensions are counted from 0,
// the outermost.
type Region struct {
	Kind            RegionKind
	Grad            TpGrad
	Shape           []int64  // of what this rank puts into Forward
	Dim             int      // that is cut over the ranks; not of RegionCopy and RegionReduce
	ToDim           int      // of RegionExchange: of what comes out
	Parts           []uint64 // sizes of the ranks' parts along Dim, one for each; nil: equal ones
	ToParts         []uint64 // the same along ToDim
	CheckReplicated bool     // compare over the ranks what should be the same on all; for debugging
}

func (r Region) raw() shim.TpRegionOptions {
	raw := shim.NewTpRegionOptions()
	raw.SetRegion(shim.MegadpTpRegion(r.Kind))
	raw.SetGrad(shim.MegadpTpGrad(r.Grad))
	raw.SetDim(r.Dim)
	raw.SetTo_dim(r.ToDim)
	raw.SetCheck_replicated(r.CheckReplicated)
	for _, size := range r.Shape {
		raw.Add_dimension(size)
	}
	parts, toParts := countsOf(r.Parts), countsOf(r.ToParts)
	defer shim.DeleteCounts(parts)
	defer shim.DeleteCounts(toParts)
	raw.Set_parts(parts)
	raw.Set_to_parts(toParts)
	return raw
}

// RegionForward writes what an operator makes of from. Collective; blocking.
func RegionForward[T Number](comm *Comm, region Region, from, to []T) error {
	return runRegion(comm, region, from, to, shim.TensorParallelRegion_forward)
}

// RegionBackward writes the gradient of what RegionForward was given, from that of what it gave. Collective; blocking.
func RegionBackward[T Number](comm *Comm, region Region, from, to []T) error {
	return runRegion(comm, region, from, to, shim.TensorParallelRegion_backward)
}

func runRegion[T Number](comm *Comm, region Region, from, to []T,
	run func(shim.Comm, shim.TpRegionOptions, shim.MegadpDType, *byte, int64, *byte, int64, shim.Failure)) error {
	raw := region.raw()
	defer shim.DeleteTpRegionOptions(raw)
	source, sourceBytes := bytesOf(from)
	target, targetBytes := bytesOf(to)
	return call(comm, func(failure shim.Failure) {
		run(comm.raw, raw, dtypeOf[T](), source, sourceBytes, target, targetBytes, failure)
	})
}
