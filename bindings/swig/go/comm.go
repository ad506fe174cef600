// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"context"
	"runtime"
	"time"
	"unsafe"

	"megadp/internal/shim"
)

// Op is how a collective combines the ranks' values.
type Op int

// The operations.
var (
	Sum = Op(shim.Op_SUM)
	Avg = Op(shim.Op_AVG)
	Max = Op(shim.Op_MAX)
	Min = Op(shim.Op_MIN)
)

// CommOptions are all defaults where they are zero. Rank and Size are for use with an ID; the launcher knows them otherwise.
type CommOptions struct {
	CUDA      bool   // instead of what the library chooses
	Host      bool   // the CPU backend, also where there are GPUs
	ID        string // of UniqueID; empty: the launcher's environment says who the ranks are
	Rank      int    // this rank, with an ID
	Size      int    // how many ranks, with an ID
	Device    int    // with CUDA, and SetDevice
	SetDevice bool   // Device is meant literally, also 0
	ExactSums bool   // with CUDA: the host's order of summation, and so its bits
	Sockets   bool   // data of the host goes between nodes over sockets that know the job's secret, not over UCX; on all ranks
	// HostThreads is how many threads work on a long array of the host together, while the program waits; 0: a share of the processors.
	HostThreads   int
	ThreadsAlways bool          // also while the program computes
	Timeout       time.Duration // how long any collective waits for another rank; 0: five minutes
}

// Comm is this rank in one ordered group of ranks. One goroutine at a time may use it and what is made from it; Abort, Lost and Close may
// come from any. Methods marked collective must be called by every rank, in the same order, and wait for the others, at most for the
// timeout. What nobody closes is freed some time after it has become unreachable.
type Comm struct {
	*owned[shim.Comm]
}

func newComm(raw shim.Comm) *Comm {
	return &Comm{own(raw, shim.DeleteComm)}
}

// UniqueID makes a name and secret under which ranks that no launcher started find each other: made by one of them, carried to the others
// by the caller, and kept from strangers.
func UniqueID() (string, error) {
	return ask(nil, shim.CommUnique_id)
}

func (o CommOptions) raw() shim.CommOptions {
	raw := shim.NewCommOptions()
	switch {
	case o.Host:
		raw.SetBackend(shim.Backend_HOST)
	case o.CUDA:
		raw.SetBackend(shim.Backend_CUDA)
	}
	raw.SetId(o.ID)
	raw.SetRank(o.Rank)
	raw.SetSize(o.Size)
	if o.SetDevice || o.Device != 0 {
		raw.SetDevice(o.Device)
	}
	raw.SetExact_sums(o.ExactSums)
	raw.SetSockets(o.Sockets)
	raw.SetHost_threads(o.HostThreads)
	raw.SetThreads_always(o.ThreadsAlways)
	raw.SetTimeout_seconds(o.Timeout.Seconds())
	return raw
}

// NewComm joins the ranks of a job into a communicator, the world. Collective over the ranks of the job.
func NewComm(options CommOptions) (*Comm, error) {
	raw := options.raw()
	defer shim.DeleteCommOptions(raw)
	comm, err := ask(nil, func(failure shim.Failure) shim.Comm { return shim.CommCreate(raw, failure) })
	if err != nil {
		return nil, err
	}
	return newComm(comm), nil
}

// Rank is this process's number, 0 to Size - 1.
func (c *Comm) Rank() (int, error) { return ask(c, c.raw.Rank) }

// Size is the number of ranks.
func (c *Comm) Size() (int, error) { return ask(c, c.raw.Size) }

// WorldRank is the rank in the world, the communicator that was not split, of a rank of this one: the number in every error.
func (c *Comm) WorldRank(rank int) (int, error) {
	return ask(c, func(failure shim.Failure) int { return c.raw.World_rank(rank, failure) })
}

// Barrier returns when all ranks have called it. When ctx is over it returns ctx's error; another Barrier goes on waiting, if no other operation
// was begun on this communicator, or on what is made on it, since; otherwise a new one begins. Collective.
func (c *Comm) Barrier(ctx context.Context) error {
	return inSlices(ctx, c, resumed(c.raw.Barrier_slice))
}

// StartBarrier begins what Barrier does.
func (c *Comm) StartBarrier() (*Request, error) { return newRequest(ask(c, c.raw.Start_barrier)) }

// Split makes a communicator of the ranks that give the same color (0 or more), ordered by key; nil where color is negative. Collective.
func (c *Comm) Split(color, key int) (*Comm, error) {
	part, err := ask(c, func(failure shim.Failure) shim.Comm { return c.raw.Split(int64(color), int64(key), failure) })
	if err != nil || part.Swigcptr() == 0 {
		return nil, err
	}
	return newComm(part), nil
}

// Abort makes the communicator and all that is made from it unusable on all ranks: for a rank that cannot go on. Does not block.
func (c *Comm) Abort() error { return call(c, c.raw.Abort) }

// Lost is what made the communicator unusable; nil while nothing has.
func (c *Comm) Lost() error {
	lost, err := ask(c, c.raw.Lost)
	if err != nil {
		return err
	}
	defer shim.DeleteFailure(lost)
	return errorFrom(lost)
}

// EventFd is readable while a finished request has not been asked for. It is the library's own: never read or close it.
func (c *Comm) EventFd() (int, error) { return ask(c, c.raw.Event_fd) }

// Close drops the handle; what was made from the communicator lives on.
func (c *Comm) Close() error {
	c.raw.Close()
	runtime.KeepAlive(c)
	return nil
}

// Number is an element of the arrays that collectives take.
type Number interface {
	float32 | float64 | int64 | uint8
}

func dtypeOf[T Number]() shim.MegadpDType {
	switch any(*new(T)).(type) {
	case float32:
		return shim.DType_F32
	case float64:
		return shim.DType_F64
	case int64:
		return shim.DType_I64
	default:
		return shim.DType_U8
	}
}

// bytesOf is a slice as the shim takes it: C may use the memory during the call, and keeps nothing of it.
func bytesOf[T Number](values []T) (*byte, int64) {
	if len(values) == 0 {
		return new(byte), 0
	}
	return (*byte)(unsafe.Pointer(&values[0])), int64(len(values)) * int64(unsafe.Sizeof(values[0]))
}

// AllReduce puts the ranks' values, combined by op in an order that is always the same, in the place of each one's. Collective; blocking.
func AllReduce[T Number](comm *Comm, values []T, op Op) error {
	data, size := bytesOf(values)
	return call(comm, func(failure shim.Failure) {
		comm.raw.All_reduce(dtypeOf[T](), data, size, data, size, shim.MegadpOp(op), failure)
	})
}

// ReduceScatter gives every rank its piece of the combined values: to has 1/Size of the elements. Collective; blocking.
func ReduceScatter[T Number](comm *Comm, from, to []T, op Op) error {
	source, sourceSize := bytesOf(from)
	target, targetSize := bytesOf(to)
	return call(comm, func(failure shim.Failure) {
		comm.raw.Reduce_scatter(dtypeOf[T](), source, sourceSize, target, targetSize, shim.MegadpOp(op), failure)
	})
}

// AllGather puts the pieces of all ranks into to, in rank order. Collective; blocking.
func AllGather[T Number](comm *Comm, from, to []T) error {
	source, sourceSize := bytesOf(from)
	target, targetSize := bytesOf(to)
	return call(comm, func(failure shim.Failure) {
		comm.raw.All_gather(dtypeOf[T](), source, sourceSize, target, targetSize, failure)
	})
}

// AllToAll sends piece r of from to rank r, which finds it as piece <this rank> of its to. Collective; blocking.
func AllToAll[T Number](comm *Comm, from, to []T) error {
	source, sourceSize := bytesOf(from)
	target, targetSize := bytesOf(to)
	return call(comm, func(failure shim.Failure) {
		comm.raw.All_to_all(dtypeOf[T](), source, sourceSize, target, targetSize, failure)
	})
}

// Broadcast gives all ranks root's values. Collective; blocking.
func Broadcast[T Number](comm *Comm, values []T, root int) error {
	data, size := bytesOf(values)
	return call(comm, func(failure shim.Failure) { comm.raw.Broadcast(dtypeOf[T](), data, size, root, failure) })
}

// SendRecv sends from to rank toRank and receives to from rank fromRank, both at once; -1 leaves a half out. No other rank takes part. Blocking.
func SendRecv[T Number](comm *Comm, from []T, toRank int, to []T, fromRank int) error {
	source, sourceSize := bytesOf(from)
	target, targetSize := bytesOf(to)
	return call(comm, func(failure shim.Failure) {
		comm.raw.Send_recv(dtypeOf[T](), source, sourceSize, toRank, target, targetSize, fromRank, failure)
	})
}

// Send sends values to another rank, which receives as many; it may wait for that. Blocking.
func Send[T Number](comm *Comm, values []T, rank int) error {
	data, size := bytesOf(values)
	return call(comm, func(failure shim.Failure) { comm.raw.Send(dtypeOf[T](), data, size, rank, failure) })
}

// Recv fills values with what another rank sends. Blocking.
func Recv[T Number](comm *Comm, values []T, rank int) error {
	data, size := bytesOf(values)
	return call(comm, func(failure shim.Failure) { comm.raw.Recv(dtypeOf[T](), data, size, rank, failure) })
}

// countsOf is a list of counts as the shim takes it; to be deleted.
func countsOf(counts []uint64) shim.Counts {
	list := shim.NewCounts()
	for _, count := range counts {
		list.Add(int64(count))
	}
	return list
}

// ReduceScatterV is ReduceScatter with pieces of different sizes: counts[r] elements for rank r, the same on all ranks. Collective; blocking.
func ReduceScatterV[T Number](comm *Comm, from, to []T, counts []uint64, op Op) error {
	source, sourceSize := bytesOf(from)
	target, targetSize := bytesOf(to)
	list := countsOf(counts)
	defer shim.DeleteCounts(list)
	return call(comm, func(failure shim.Failure) {
		comm.raw.Reduce_scatter_v(dtypeOf[T](), source, sourceSize, target, targetSize, list, shim.MegadpOp(op), failure)
	})
}

// AllGatherV is AllGather with pieces of different sizes: counts[r] elements of rank r, the same on all ranks. Collective; blocking.
func AllGatherV[T Number](comm *Comm, from, to []T, counts []uint64) error {
	source, sourceSize := bytesOf(from)
	target, targetSize := bytesOf(to)
	list := countsOf(counts)
	defer shim.DeleteCounts(list)
	return call(comm, func(failure shim.Failure) {
		comm.raw.All_gather_v(dtypeOf[T](), source, sourceSize, target, targetSize, list, failure)
	})
}

// AllToAllV is AllToAll with pieces of different sizes: fromCounts[r] elements go to rank r, toCounts[r] come from it. Collective; blocking.
func AllToAllV[T Number](comm *Comm, from []T, fromCounts []uint64, to []T, toCounts []uint64) error {
	source, sourceSize := bytesOf(from)
	target, targetSize := bytesOf(to)
	sent, expected := countsOf(fromCounts), countsOf(toCounts)
	defer shim.DeleteCounts(sent)
	defer shim.DeleteCounts(expected)
	return call(comm, func(failure shim.Failure) {
		comm.raw.All_to_all_v(dtypeOf[T](), source, sourceSize, sent, target, targetSize, expected, failure)
	})
}

// Request is a pending operation. Any goroutine may use it; dropping it lets the operation go on.
type Request struct {
	*owned[shim.Request]
}

func newRequest(raw shim.Request, err error) (*Request, error) {
	if err != nil {
		return nil, err
	}
	return &Request{own(raw, shim.DeleteRequest)}, nil
}

// Done says whether the operation has finished; the error is the operation's. Does not block.
func (r *Request) Done() (bool, error) { return ask(r, r.raw.Done) }

// Wait blocks until the operation has finished, and returns its error, or until ctx is over; the operation goes on then.
func (r *Request) Wait(ctx context.Context) error { return inSlices(ctx, r, r.raw.Wait_slice) }

// Close drops the request.
func (r *Request) Close() error {
	r.raw.Close()
	runtime.KeepAlive(r)
	return nil
}
