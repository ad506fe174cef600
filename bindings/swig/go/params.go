// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"runtime"

	"megadp/internal/shim"
)

// DType is the type of an element of a parameter or gradient.
type DType int

// Element types. Zero is the default: F32.
var (
	Same = DType(shim.DType_SAME) // of gradients: the parameter's
	F32  = DType(shim.DType_F32)
	BF16 = DType(shim.DType_BF16)
	F16  = DType(shim.DType_F16)
	F64  = DType(shim.DType_F64) // these three of a checkpoint's tensors
	I64  = DType(shim.DType_I64)
	U8   = DType(shim.DType_U8)
)

// Placement of a parameter over the tensor-parallel ranks; must be said with more than one of them, or with expert parallelism.
type Placement int

// Placements.
var (
	Replicated  = Placement(shim.Placement_REPLICATED)
	Sharded     = Placement(shim.Placement_SHARDED)
	PartialSum  = Placement(shim.Placement_PARTIAL_SUM) // replicated, but each rank has a part of the gradient
	PartialMean = Placement(shim.Placement_PARTIAL_MEAN)
)

// Param describes a parameter. Zero is the default of everything but Name; no Shape is a single number.
type Param struct {
	Name        string
	Shape       []int64
	DType       DType // F32, BF16 or F16
	UsesPerStep int   // how many puts make its gradient ready in a microbatch; 0: 1
	Expert      bool
	Placement   Placement
	ShardDim    int // with Sharded: the dimension cut over the tensor-parallel ranks
	ShardStride int // with Sharded: how many pieces a rank has; 0: 1
	ParamGroup  int // index among the optimizer's ParamGroups
	Frozen      bool
	OwnBucket   bool
	UseOrder    int     // parameters are used in ascending order of this, equal ones as listed; Buffer.UseOrder tells it
	Tie         string  // a name that its copies on other pipeline stages have too: their gradients are added up
	Whole       bool    // has one owner, in a buffer that is otherwise ZeRO-1 or ZeRO-2
	Cost        float64 // of its update if it has one owner, by which owners are balanced; 0: its elements
}

// raw is for one call; the caller deletes it.
func (p Param) raw() shim.Param {
	raw := shim.NewParam(p.Name)
	for _, size := range p.Shape {
		raw.Add_dimension(size)
	}
	raw.SetDtype(shim.MegadpDType(p.DType))
	raw.SetUses_per_step(p.UsesPerStep)
	if p.Expert {
		raw.SetParam_class(shim.ParamClass_EXPERT)
	}
	raw.SetPlacement(shim.MegadpPlacement(p.Placement))
	raw.SetShard_dim(p.ShardDim)
	raw.SetShard_stride(p.ShardStride)
	raw.SetParam_group(p.ParamGroup)
	raw.SetUse_order(p.UseOrder)
	raw.SetFrozen(p.Frozen)
	raw.SetOwn_bucket(p.OwnBucket)
	raw.SetTie(p.Tie)
	if p.Whole {
		raw.SetSharding(shim.Sharding_WHOLE)
	}
	raw.SetCost(p.Cost)
	return raw
}

func (p Param) addTo(list shim.Params) {
	raw := p.raw()
	defer shim.DeleteParam(raw)
	list.Add(raw)
}

// GridOptions are sizes; 0 is 1, and for ExpertTP: TP. What is left of the world is data parallel.
type GridOptions struct {
	TP, CP, EP, PP, ExpertTP int
	Instances                int    // runs of neighbours into which the dp x cp ranks are cut, each with all of the optimizer's state
	Order                    string // axes from the fastest to the slowest varying rank; empty: "tp-cp-ep-dp-pp"
}

// Axis is one axis of a grid; several are combined by |.
type Axis int

// The axes, on the dense grid unless ExpertGrid is among them.
var (
	TP         = Axis(shim.Axis_TP)
	CP         = Axis(shim.Axis_CP)
	EP         = Axis(shim.Axis_EP)
	DP         = Axis(shim.Axis_DP)
	PP         = Axis(shim.Axis_PP)
	ExpertGrid = Axis(shim.Axis_EXPERT_GRID)
)

func (o GridOptions) raw() shim.GridOptions {
	raw := shim.NewGridOptions()
	raw.SetTp(o.TP)
	raw.SetCp(o.CP)
	raw.SetEp(o.EP)
	raw.SetPp(o.PP)
	raw.SetExpert_tp(o.ExpertTP)
	raw.SetInstances(o.Instances)
	raw.SetOrder(o.Order)
	return raw
}

// Grid is the world cut into tensor, context, expert, data and pipeline parallel groups.
type Grid struct {
	*owned[shim.Grid]
}

// NewGrid is collective over the world, with equal options.
func NewGrid(world *Comm, options GridOptions) (*Grid, error) {
	raw := options.raw()
	defer shim.DeleteGridOptions(raw)
	made, err := ask(world, func(failure shim.Failure) shim.Grid { return shim.GridCreate(world.raw, raw, failure) })
	if err != nil {
		return nil, err
	}
	return &Grid{own(made, shim.DeleteGrid)}, nil
}

// Index is this rank's place in the group that the axes span together.
func (g *Grid) Index(axes Axis) (int, error) {
	return ask(g, func(failure shim.Failure) int { return g.raw.Index(int(axes), failure) })
}

// Size is the size of that group.
func (g *Grid) Size(axes Axis) (int, error) {
	return ask(g, func(failure shim.Failure) int { return g.raw.Size(int(axes), failure) })
}

// Comm is the communicator of that group. Collective over the world the first time.
func (g *Grid) Comm(axes Axis) (*Comm, error) {
	comm, err := ask(g, func(failure shim.Failure) shim.Comm { return g.raw.Comm(int(axes), failure) })
	if err != nil {
		return nil, err
	}
	return newComm(comm), nil
}

// Random says which ranks draw the same random numbers.
type Random int

// SameRandom: all, of what is replicated over tensor-parallel ranks. TensorRandom: those of a tensor-parallel group draw different ones.
// ExpertRandom: those of an expert-parallel group, too.
var (
	SameRandom   = Random(shim.Random_REPLICATED)
	TensorRandom = Random(shim.Random_TENSOR)
	ExpertRandom = Random(shim.Random_EXPERT)
)

// Seed is the seed of this rank's random numbers (dropout, initial values). Local.
func (g *Grid) Seed(seed uint64, random Random) (uint64, error) {
	found, err := ask(g, func(failure shim.Failure) int64 { return g.raw.Seed(int64(seed), shim.MegadpRandom(random), failure) })
	return uint64(found), err
}

// Close drops the handle.
func (g *Grid) Close() error {
	g.raw.Close()
	runtime.KeepAlive(g)
	return nil
}
