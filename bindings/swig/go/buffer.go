// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"context"
	"runtime"

	"megadp/internal/shim"
)

// Missing is what Sync does about a parameter that never became ready.
type Missing int

// What there is to do: refuse the step (the default), take the gradient as zero, or skip the parameter.
var (
	MissingRefuse = Missing(shim.Missing_REFUSE)
	MissingZero   = Missing(shim.Missing_ZERO)
	MissingSkip   = Missing(shim.Missing_SKIP)
)

// Scaling is what the sum of gradients is divided by.
type Scaling int

// The number of data-parallel ranks (the default), nothing, or the step's tokens (Buffer.Tokens).
var (
	ScalingMean   = Scaling(shim.Scaling_MEAN)
	ScalingSum    = Scaling(shim.Scaling_SUM)
	ScalingTokens = Scaling(shim.Scaling_TOKENS)
)

// BufferOptions are all defaults where they are zero.
type BufferOptions struct {
	GradDType            DType // F32 or Same
	WireDType            DType // of F32 gradients: F32, or BF16: each rank's is rounded once, sums are F32
	Zero0                bool  // nothing is sharded; by default optimizer state is (ZeRO-1)
	Zero2                bool  // gradients are sharded too: they pass through a small pool (ZeRO-2)
	Whole                bool  // each parameter has one owner, for updates that need all of it
	Missing              Missing
	Scaling              Scaling
	BucketElements       int64 // a bucket closes once it is this long; 0: the library decides
	BucketCount          int64 // instead: all elements / this
	NoOverlap            bool  // launch everything at Sync
	HighBandwidthPadding bool
	ReferenceBuckets     bool
	IgnoreMemory         bool  // take memory also where the system says that there is too little; of any rank
	ErrorFeedback        bool  // with WireDType: add to the next step's gradient what rounding lost
	CheckFinite          bool  // look for gradients that are not finite before they are reduced: Sync returns ErrNumeric
	CheckLarge           bool  // warn of a gradient with 10 times the largest norm of its first 100
	PoolBuckets          int64 // with Zero2: for how many buckets the pool has room; 0: 2
	SpillLimit           int64 // with Zero2: most bytes of gradients outside the pool; 0: no limit. Each rank's own
}

func (o BufferOptions) raw() shim.BufferOptions {
	raw := shim.NewBufferOptions()
	raw.SetGrad_dtype(shim.MegadpDType(o.GradDType))
	raw.SetWire_dtype(shim.MegadpDType(o.WireDType))
	if o.Zero0 {
		raw.SetSharding(shim.Sharding_ZERO_0)
	} else if o.Zero2 {
		raw.SetSharding(shim.Sharding_ZERO_2)
	} else if o.Whole {
		raw.SetSharding(shim.Sharding_WHOLE)
	}
	raw.SetMissing(shim.MegadpMissing(o.Missing))
	raw.SetScaling(shim.MegadpScaling(o.Scaling))
	raw.SetBucket_elements(o.BucketElements)
	raw.SetBucket_count(o.BucketCount)
	raw.SetNo_overlap(o.NoOverlap)
	raw.SetHigh_bandwidth_padding(o.HighBandwidthPadding)
	raw.SetReference_buckets(o.ReferenceBuckets)
	raw.SetIgnore_memory(o.IgnoreMemory)
	raw.SetError_feedback(o.ErrorFeedback)
	raw.SetCheck_finite(o.CheckFinite)
	raw.SetCheck_large(o.CheckLarge)
	raw.SetPool_buckets(o.PoolBuckets)
	raw.SetSpill_limit(o.SpillLimit)
	return raw
}

// Float is an element of a gradient that is put, or of a parameter that is read or written.
type Float interface {
	float32 | float64
}

// Buffer is all parameters and their gradients, in the library's memory. param is always an index into the list they were registered with.
// Put, Acquire, Release, Ready, Skip and Wait may be called by any goroutine, the others by the communicator's. Nothing is kept of slices
// passed in.
type Buffer struct {
	*owned[shim.Buffer]
}

// NewBuffer lays out and allocates parameters, in the order of the forward pass, and their gradients, zeroed. All ranks of the communicator
// are data parallel. Collective over it, with the same registration on all ranks.
func NewBuffer(comm *Comm, params []Param, options BufferOptions) (*Buffer, error) {
	return register(params, options, comm, func(list shim.Params, raw shim.BufferOptions, failure shim.Failure) shim.Buffer {
		return shim.BufferCreate(comm.raw, list, raw, failure)
	})
}

// NewBufferOn is NewBuffer on a grid.
func NewBufferOn(grid *Grid, params []Param, options BufferOptions) (*Buffer, error) {
	return register(params, options, grid, func(list shim.Params, raw shim.BufferOptions, failure shim.Failure) shim.Buffer {
		return shim.BufferCreate_on(grid.raw, list, raw, failure)
	})
}

func register(params []Param, options BufferOptions, on any,
	create func(shim.Params, shim.BufferOptions, shim.Failure) shim.Buffer) (*Buffer, error) {
	if (options.Zero0 && options.Zero2) || (options.Whole && (options.Zero0 || options.Zero2)) {
		return nil, &Error{ErrInvalid, "MDP_E_INVALID", "two of Zero0, Zero2 and Whole are set; one of them can be", -1, -1, -1, 0}
	}
	list, raw := shim.NewParams(), options.raw()
	defer shim.DeleteParams(list)
	defer shim.DeleteBufferOptions(raw)
	for _, param := range params {
		param.addTo(list)
	}
	made, err := ask(on, func(failure shim.Failure) shim.Buffer { return create(list, raw, failure) })
	if err != nil {
		return nil, err
	}
	return &Buffer{own(made, shim.DeleteBuffer)}, nil
}

// Find is the index of the parameter of that name.
func (b *Buffer) Find(name string) (int, error) {
	return ask(b, func(failure shim.Failure) int { return int(b.raw.Find(name, failure)) })
}

// Buckets is the number of buckets that the gradients are cut into.
func (b *Buffer) Buckets() (int, error) {
	return ask(b, func(failure shim.Failure) int { return int(b.raw.Buckets(failure)) })
}

// BeginMicrobatch says whether the microbatch that begins is the last of its step. Not needed where each step has one. With Zero2 it launches
// what the one before has left.
func (b *Buffer) BeginMicrobatch(last bool) error {
	return call(b, func(failure shim.Failure) { b.raw.Begin_microbatch(last, failure) })
}

// Wait returns when the parameter holds its values after the last step.
func (b *Buffer) Wait(param int) error {
	return call(b, func(failure shim.Failure) { b.raw.Wait(int64(param), failure) })
}

// WaitAll waits for all parameters.
func (b *Buffer) WaitAll() error { return call(b, b.raw.Wait_all) }

// Put copies a gradient into its slot and counts it as ready. The first of a step replaces what is there, later ones are added.
func Put[T Float](buffer *Buffer, param int, grad []T) error { return put(buffer, param, grad, false) }

// PutMore is Put for a part of a gradient: more of the same use is coming, so it does not count as ready yet.
func PutMore[T Float](buffer *Buffer, param int, grad []T) error {
	return put(buffer, param, grad, true)
}

func put[T Float](buffer *Buffer, param int, grad []T, more bool) error {
	data, size := bytesOf(grad)
	return call(buffer, func(failure shim.Failure) {
		buffer.raw.Put(int64(param), dtypeOf[T](), data, size, false, more, failure)
	})
}

// Read copies a parameter into the slice, after the last step.
func Read[T Float](buffer *Buffer, param int, to []T) error {
	data, size := bytesOf(to)
	return call(buffer, func(failure shim.Failure) { buffer.raw.Read(int64(param), dtypeOf[T](), data, size, failure) })
}

// Write gives a parameter new values, the same on all ranks of the data-parallel group.
func Write[T Float](buffer *Buffer, param int, from []T) error {
	data, size := bytesOf(from)
	return call(buffer, func(failure shim.Failure) { buffer.raw.Write(int64(param), dtypeOf[T](), data, size, failure) })
}

// Acquire lends the memory where a gradient goes, of any sharding, until Ready or Release. With first every element is to be written, and after
// Release it is as if nothing had been; otherwise they are to be added to, and what was added stays after Release. With Zero2 it is F32 where gradients are half as wide and
// UsesPerStep is above 1. The View's slices are not to be touched once it was given back; asked then, it has none. Waits as Put.
func (b *Buffer) Acquire(param int) (view *View, first bool, err error) {
	view, err = newView(ask(b, func(failure shim.Failure) shim.View { return b.raw.Acquire(int64(param), failure) }))
	return view, err == nil && view.raw.First(), err
}

// Release gives back what Acquire lent: nothing has come, if it was the first or nothing was added. Does not block.
func (b *Buffer) Release(param int) error {
	return call(b, func(failure shim.Failure) { b.raw.Release(int64(param), failure) })
}

// Ready says that the gradient lies in its view, or in what Acquire lent (with Zero2 only there). Does not block.
func (b *Buffer) Ready(param int) error {
	return call(b, func(failure shim.Failure) { b.raw.Ready(int64(param), failure) })
}

// Skip says that this rank has no gradient of the parameter in this microbatch. Does not block.
func (b *Buffer) Skip(param int) error {
	return call(b, func(failure shim.Failure) { b.raw.Skip(int64(param), failure) })
}

// Tokens says, with ScalingTokens, over how many tokens (or samples) this rank's losses of the step are summed: steps and norms divide by the
// sum over the data-parallel ranks, by 1 if that is 0. Ranks that share a batch say the same, or one does. Once a step, before Sync. Local; with
// half-width gradients on all ranks before the first one, collective.
func (b *Buffer) Tokens(count float64) error {
	return call(b, func(failure shim.Failure) { b.raw.Tokens(count, failure) })
}

// Changed is to be called after parameters were written through views.
func (b *Buffer) Changed() error { return call(b, b.raw.Changed) }

// ZeroGrad sets all gradients to zero and begins the step anew.
func (b *Buffer) ZeroGrad() error { return call(b, b.raw.Zero_grad) }

// Sync ends backward: the gradients of all ranks are reduced, and the ranks agree on what was missing. When ctx is over it returns ctx's
// error; another Sync goes on waiting. Optimizer.Step does the same where nobody has. After ErrNumeric (CheckFinite) a step may follow, which is
// skipped where it has a LossScale. Collective.
func (b *Buffer) Sync(ctx context.Context) error { return inSlices(ctx, b, b.raw.Sync_slice) }

// StartSync begins what Sync does.
func (b *Buffer) StartSync() (*Request, error) { return newRequest(ask(b, b.raw.Start_sync)) }

// GradNorm is the L2 norm of all reduced gradients over the whole model, each element counted once, as Optimizer.Step counts it: infinite or
// NaN where one is not finite, on all ranks. For between Sync and Step. Collective.
func (b *Buffer) GradNorm() (float64, error) { return ask(b, b.raw.Grad_norm) }

// GradNormOf is GradNorm of these parameters alone, 0 where params is empty; the same list on ranks that share parameters.
func (b *Buffer) GradNormOf(params []int) (float64, error) {
	first, count := listOf(params)
	return ask(b, func(failure shim.Failure) float64 { return b.raw.Grad_norm_of(first, count, failure) })
}

// GradSummary is what can be said of reduced gradients: the L2 norm, the largest magnitude (NaN is none), how many elements are zero, and how
// many not finite.
type GradSummary struct {
	Norm, InfNorm    float64
	Zeros, NonFinite int64
}

func summaryOf(raw shim.GradSummary, err error) (GradSummary, error) {
	if err != nil {
		return GradSummary{}, err
	}
	defer shim.DeleteGradSummary(raw)
	return GradSummary{raw.GetNorm(), raw.GetInf_norm(), raw.GetZeros(), raw.GetNonfinite()}, nil
}

// GradSummary is of all reduced gradients over the whole model, each element counted once, as GradNorm. Collective.
func (b *Buffer) GradSummary() (GradSummary, error) { return summaryOf(ask(b, b.raw.Grad_summary)) }

// GradSummaryOf is GradSummary of these parameters alone.
func (b *Buffer) GradSummaryOf(params []int) (GradSummary, error) {
	first, count := listOf(params)
	return summaryOf(ask(b, func(failure shim.Failure) shim.GradSummary { return b.raw.Grad_summary_of(first, count, failure) }))
}

// ScaleGrads multiplies all reduced gradients, in place: with Zero0 whole, otherwise what this rank owns. For between Sync and Step; alike on
// all ranks. Does not wait for them.
func (b *Buffer) ScaleGrads(factor float64) error {
	return call(b, func(failure shim.Failure) { b.raw.Scale_grads(factor, failure) })
}

// ScaleGradsOf is ScaleGrads of these parameters alone.
func (b *Buffer) ScaleGradsOf(factor float64, params []int) error {
	first, count := listOf(params)
	return call(b, func(failure shim.Failure) { b.raw.Scale_grads_of(factor, first, count, failure) })
}

// listOf is a list of parameters as the shim takes it, for the length of a call.
func listOf(params []int) (*int64, int64) {
	list := make([]int64, len(params)+1)
	for i, param := range params {
		list[i] = int64(param)
	}
	return &list[0], int64(len(params))
}

// GradsChanged is to be called after reduced gradients were written through views, between Sync and Step.
func (b *Buffer) GradsChanged() error { return call(b, b.raw.Grads_changed) }

// Broadcast gives all ranks of each data-parallel group root's parameters. When ctx is over it returns ctx's error; another Broadcast goes on
// waiting, as Comm.Barrier. Collective.
func (b *Buffer) Broadcast(ctx context.Context, root int) error {
	return inSlices(ctx, b, resumed(func(again bool, failure shim.Failure) bool { return b.raw.Broadcast_slice(root, again, failure) }))
}

// StartBroadcast begins what Broadcast does; before the request has ended, nobody reads or writes parameters.
func (b *Buffer) StartBroadcast(root int) (*Request, error) {
	return newRequest(ask(b, func(failure shim.Failure) shim.Request { return b.raw.Start_broadcast(root, failure) }))
}

// Verify fails where the ranks of a data-parallel group do not have the same parameters, bit for bit, or tensor-parallel ranks what is not
// sharded. Collective; slow.
func (b *Buffer) Verify() error { return call(b, b.raw.Verify) }

// Param lends the library's memory of a parameter. Write it between a step and the next forward, and call Changed.
func (b *Buffer) Param(param int) (*View, error) {
	return newView(ask(b, func(failure shim.Failure) shim.View { return b.raw.Param(int64(param), failure) }))
}

// Grad lends the library's memory of a gradient, which means something after Sync (with ZeRO-1: the owned part of it). With Zero2 there is none.
func (b *Buffer) Grad(param int) (*View, error) {
	return newView(ask(b, func(failure shim.Failure) shim.View { return b.raw.Grad(int64(param), failure) }))
}

// OwnedGrad lends what this rank owns of a reduced gradient, between Sync and Step; with Zero2 it is F32. Range.ParamBegin says where it begins.
// It may be written, and GradsChanged follows.
func (b *Buffer) OwnedGrad(param int) (*View, error) {
	return newView(ask(b, func(failure shim.Failure) shim.View { return b.raw.Owned_grad(int64(param), failure) }))
}

// Stats are sums since registration; times in nanoseconds; SpillPeakBytes is the most that lay outside the pool, LargeGradients are
// CheckLarge's warnings. As mdp_stats_report.
type Stats struct {
	CommNs, ExposedNs, Bytes, Buckets, LaunchedInBackward, Syncs, HostSyncs, SpillPeakBytes, LargeGradients int64
}

// Stats of this buffer.
func (b *Buffer) Stats() (Stats, error) {
	raw, err := ask(b, b.raw.Stats)
	if err != nil {
		return Stats{}, err
	}
	defer shim.DeleteStats(raw)
	return Stats{raw.GetComm_ns(), raw.GetExposed_ns(), raw.GetBytes(), raw.GetBuckets(), raw.GetLaunched_in_backward(), raw.GetSyncs(),
		raw.GetHost_syncs(), raw.GetSpill_peak_bytes(), raw.GetLarge_gradients()}, nil
}

// UseOrder is of each parameter the Param.UseOrder with which the last synced step's gradients would have filled bucket after bucket; for the
// next time that they are registered. Collective.
func (b *Buffer) UseOrder() ([]int, error) {
	count := b.raw.Size()
	list := make([]int64, count+1)
	order := make([]int, count)
	err := call(b, func(failure shim.Failure) { b.raw.Use_order(&list[0], count, failure) })
	if err != nil {
		return nil, err
	}
	for i := range order {
		order[i] = int(list[i])
	}
	return order, nil
}

// Range is one piece of one parameter whose optimizer state this rank keeps. As mdp_range.
type Range struct {
	Arena, Bucket, Param, Begin, End, ParamBegin int64
}

// Owned are the ranges that this rank owns.
func (b *Buffer) Owned() ([]Range, error) {
	count, err := ask(b, b.raw.Owned_count)
	var owned []Range
	for i := int64(0); err == nil && i < count; i++ {
		var raw shim.Range
		if raw, err = ask(b, func(failure shim.Failure) shim.Range { return b.raw.Owned(i, failure) }); err == nil {
			owned = append(owned, Range{raw.GetArena(), raw.GetBucket(), raw.GetParam(), raw.GetFirst(), raw.GetPast(), raw.GetParam_first()})
			shim.DeleteRange(raw)
		}
	}
	return owned, err
}

// Close drops the handle; views and optimizers live on.
func (b *Buffer) Close() error {
	b.raw.Close()
	runtime.KeepAlive(b)
	return nil
}
