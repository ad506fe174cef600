// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"megadp"
)

// third is the error of a call that has two other answers.
func third(_ *megadp.View, _ bool, err error) error { return err }

// trained are the bits of the parameters after steps whose gradients are written where they go, or put; what lay outside the pool; and how
// much of the gradients this rank owns.
func trained(comm *megadp.Comm, options megadp.BufferOptions, written bool) (bits []uint32, stats megadp.Stats, owned int, err error) {
	options.BucketElements = 1
	params := []megadp.Param{{Name: "lower", Shape: []int64{40}}, {Name: "middle", Shape: []int64{300}}, {Name: "upper", Shape: []int64{7}}}
	buffer, err := megadp.NewBuffer(comm, params, options)
	if err != nil {
		return
	}
	defer buffer.Close()
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{LR: 0.0625, MaxGradNorm: 1})
	if err != nil {
		return
	}
	defer optimizer.Close()
	rank, err := comm.Rank()
	if err != nil {
		return
	}
	for step := 0; step < 4; step++ {
		for i := 2; i >= 0; i-- {
			grad := make([]float32, params[i].Shape[0])
			for k := range grad {
				grad[k] = float32(math.Sin(float64(1+k*7+i*31+step*57+rank*91))) / 3
			}
			if err = hand(buffer, i, grad, written); err != nil {
				return
			}
		}
		if err = buffer.Sync(context.Background()); err != nil {
			return
		}
		for i := range params {
			view, failed := buffer.OwnedGrad(i)
			if failed != nil {
				return nil, stats, 0, failed
			}
			owned += len(view.Float32s())
			view.Close()
		}
		if _, err = optimizer.Step(megadp.StepOptions{}); err != nil {
			return
		}
	}
	for i, param := range params {
		values := make([]float32, param.Shape[0])
		if err = megadp.Read(buffer, i, values); err != nil {
			return
		}
		for _, value := range values {
			bits = append(bits, math.Float32bits(value))
		}
	}
	stats, err = buffer.Stats()
	return
}

func hand(buffer *megadp.Buffer, param int, grad []float32, written bool) error {
	if !written {
		return megadp.Put(buffer, param, grad)
	}
	view, first, err := buffer.Acquire(param)
	if err != nil {
		return err
	}
	defer view.Close()
	if copy(view.Float32s(), grad) != len(grad) || !first {
		return errors.New("not all of a first gradient is lent")
	}
	return buffer.Ready(param)
}

// zero2Step, with two ranks: the bits of ZeRO-1.
func zero2Step() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	expected, _, owned, err := trained(comm, megadp.BufferOptions{}, false)
	if err != nil {
		return err
	}
	for _, options := range []megadp.BufferOptions{{Zero2: true}, {Zero2: true, PoolBuckets: 1}, {Zero2: true, PoolBuckets: 3, SpillLimit: 1 << 20}, {}} {
		for _, written := range []bool{false, true} {
			bits, stats, mine, err := trained(comm, options, written)
			if err != nil {
				return err
			}
			if fmt.Sprint(bits) != fmt.Sprint(expected) || mine != owned || (!options.Zero2 && stats.SpillPeakBytes != 0) {
				return fmt.Errorf("%+v, written %v: other parameters, or %d owned, not %d, or %d bytes outside", options, written, mine, owned,
					stats.SpillPeakBytes)
			}
		}
	}
	all := []float64{float64(owned)}
	if err := megadp.AllReduce(comm, all, megadp.Sum); err != nil {
		return err
	}
	fmt.Println("same", all[0])
	return comm.Barrier(context.Background())
}

func TestZero2(t *testing.T) {
	lines, status := runRanks(t, 2, "zero2", self(t))
	expectLines(t, lines, "same 1388", "same 1388")
	if status != 0 {
		t.Error(status)
	}
}

// instancesStep, with four ranks: two optimizer instances of two take the steps of one of four, bit for bit.
func instancesStep() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	for _, zero2 := range []bool{false, true} {
		one, ofOne, err := steps(comm, 1, zero2)
		if err != nil {
			return err
		}
		two, ofTwo, err := steps(comm, 2, zero2)
		if err != nil {
			return err
		}
		if fmt.Sprint(one) != fmt.Sprint(two) || ofTwo != 2*ofOne {
			return fmt.Errorf("Zero2 %v: other parameters, or %v owned, not twice %v", zero2, ofTwo, ofOne)
		}
	}
	fmt.Println("same")
	return comm.Barrier(context.Background())
}

// steps are the bits of a parameter after two steps, and how much of it all ranks together own.
func steps(comm *megadp.Comm, instances int, zero2 bool) ([]uint32, float64, error) {
	grid, err := megadp.NewGrid(comm, megadp.GridOptions{Instances: instances})
	if err != nil {
		return nil, 0, err
	}
	buffer, err := megadp.NewBufferOn(grid, []megadp.Param{{Name: "w", Shape: []int64{300}}}, megadp.BufferOptions{Zero2: zero2})
	if err != nil {
		return nil, 0, err
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{})
	if err != nil {
		return nil, 0, err
	}
	rank, err := comm.Rank()
	if err != nil {
		return nil, 0, err
	}
	values, owned := make([]float32, 300), []float64{0}
	for step := 0; step < 2; step++ {
		for k := range values {
			values[k] = float32(math.Sin(float64(1+k*7+step*57+rank*91))) / 3
		}
		if err := megadp.Put(buffer, 0, values); err != nil {
			return nil, 0, err
		}
		if _, err := optimizer.Step(megadp.StepOptions{}); err != nil {
			return nil, 0, err
		}
	}
	ranges, err := buffer.Owned()
	if err != nil {
		return nil, 0, err
	}
	for _, piece := range ranges {
		owned[0] += float64(piece.End - piece.Begin)
	}
	if err := megadp.AllReduce(comm, owned, megadp.Sum); err != nil {
		return nil, 0, err
	}
	if err := megadp.Read(buffer, 0, values); err != nil {
		return nil, 0, err
	}
	var bits []uint32
	for _, value := range values {
		bits = append(bits, math.Float32bits(value))
	}
	return bits, owned[0], nil
}

func TestInstances(t *testing.T) {
	lines, status := runRanks(t, 4, "instances", self(t))
	expectLines(t, lines, "same", "same", "same", "same")
	if status != 0 {
		t.Error(status)
	}
}

// What is lent, and what is refused meanwhile and after it was given back.
func TestLent(t *testing.T) {
	comm := open(t)
	buffer, err := megadp.NewBuffer(comm, two, megadp.BufferOptions{Zero2: true, SpillLimit: 20, BucketElements: 1, PoolBuckets: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer buffer.Close()
	view, first, err := buffer.Acquire(1)
	if err != nil || !first || len(view.Float32s()) != 4 || view.DType() != megadp.F32 {
		t.Fatal(view, first, err)
	}
	defer view.Close()
	for i, refused := range []struct {
		err  error
		kind megadp.Status
		word string
	}{{megadp.Put(buffer, 1, b), megadp.ErrState, "is lent"}, {buffer.Skip(1), megadp.ErrState, "is lent"}, {third(buffer.Acquire(1)), megadp.ErrState, "is lent"},
		{buffer.BeginMicrobatch(true), megadp.ErrState, "is lent"}, {buffer.Release(0), megadp.ErrState, "not lent"}, {third(buffer.Acquire(2)), megadp.ErrInvalid, "2"},
		{buffer.Release(-1), megadp.ErrInvalid, "-1"}, {second(buffer.OwnedGrad(0)), megadp.ErrState, "mdp_grad_sync"},
		{second(buffer.Grad(1)), megadp.ErrUnsupported, "mdp_grad_acquire"}, {megadp.Put(buffer, 0, w), megadp.ErrMemory, "spill_limit is 20"}} {
		if wrong := mismatch(refused.err, refused.kind, refused.word); wrong != "" {
			t.Errorf("call %d: %s", i, wrong)
		}
	}
	if err := buffer.Release(1); err != nil || view.Bytes() != nil {
		t.Error("what was given back lends nothing:", err)
	}
	if err := hand(buffer, 1, b, true); err != nil {
		t.Error(err)
	}
	_, err = megadp.NewBuffer(comm, two, megadp.BufferOptions{Zero0: true, Zero2: true})
	if wrong := mismatch(err, megadp.ErrInvalid, "Zero2"); wrong != "" {
		t.Error(wrong)
	}
}
