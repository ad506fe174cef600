// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"megadp"
)

// first is the first of some errors that is one.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// cut, with three ranks: parts and their numbers in the world, and a buffer on a part, whose names and values are its own.
func cut() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	rank, err := comm.Rank()
	if err != nil {
		return err
	}
	part, err := comm.Split(rank%2, -rank)
	if err != nil {
		return err
	}
	size, err := part.Size()
	if err != nil {
		return err
	}
	members := make([]int, size)
	for i := range members {
		if members[i], err = part.WorldRank(i); err != nil {
			return err
		}
	}
	buffer, err := megadp.NewBuffer(part, two, megadp.BufferOptions{BucketElements: 1})
	if err != nil {
		return err
	}
	place, err := buffer.Find("b")
	if err != nil {
		return err
	}
	buckets, err := buffer.Buckets()
	if err != nil {
		return err
	}
	own := float32(rank)
	if err := first(megadp.Write(buffer, place, []float32{own, own, own, own}), buffer.Broadcast(context.Background(), 0)); err != nil {
		return err
	}
	values := make([]float32, 4)
	if err := megadp.Read(buffer, place, values); err != nil {
		return err
	}
	request, err := buffer.StartBroadcast(size - 1)
	if err != nil {
		return err
	}
	if err := first(request.Wait(context.Background()), buffer.Verify(), comm.Barrier(context.Background())); err != nil {
		return err
	}
	fmt.Println("part", members, "b", place, "buckets", buckets, "value", values[3])
	return nil
}

func TestCut(t *testing.T) {
	lines, status := runRanks(t, 3, "cut", self(t))
	expectLines(t, lines, "part [1] b 1 buckets 2 value 1", "part [2 0] b 1 buckets 2 value 2", "part [2 0] b 1 buckets 2 value 2")
	if status != 0 {
		t.Error(status)
	}
}

// heldBarrier, with two ranks: who waits in a barrier can stop waiting, and go on with it, at once.
func heldBarrier() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	rank, err := comm.Rank()
	if err != nil {
		return err
	}
	if err := heldWait(rank, comm.Barrier); err != nil {
		return err
	}
	request, err := comm.StartBarrier() // a second one: the first is over on both ranks
	if err != nil {
		return err
	}
	if err := request.Wait(context.Background()); err != nil {
		return err
	}
	fmt.Println("passed", leftBarrier(comm, rank))
	return nil
}

// leftBarrier, with two ranks: after another operation a barrier is a new one, whatever rank 0 has stopped waiting for. The flag is there.
func leftBarrier(comm *megadp.Comm, rank int) error {
	flag := os.Getenv("MEGADP_TEST_FLAG")
	if rank == 0 {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := comm.Barrier(ctx); !errors.Is(err, context.Canceled) { // the other rank comes only after the next line
			return fmt.Errorf("expected a cancelled wait, was %v", err)
		}
		if err := os.Remove(flag); err != nil {
			return err
		}
	} else {
		for _, err := os.Stat(flag); err == nil; _, err = os.Stat(flag) {
			time.Sleep(5 * time.Millisecond)
		}
		if err := comm.Barrier(context.Background()); err != nil {
			return err
		}
	}
	if err := megadp.AllReduce(comm, []float32{1}, megadp.Sum); err != nil {
		return err
	}
	if rank == 1 {
		time.Sleep(200 * time.Millisecond)
		if err := os.WriteFile(flag, nil, 0o600); err != nil {
			return err
		}
	}
	if err := comm.Barrier(context.Background()); err != nil {
		return err
	}
	_, err := os.Stat(flag)
	return err
}

func TestHeldBarrier(t *testing.T) {
	lines, status := runRanks(t, 2, "held", self(t))
	expectLines(t, lines, "passed <nil>", "passed <nil>")
	if status != 0 {
		t.Error(status)
	}
}

// What is given is meant literally, and what is not is the optimizer's. Steps sync by themselves.
func TestGivenValues(t *testing.T) {
	params := []megadp.Param{{Name: "decays"}, {Name: "does not", ParamGroup: 1}, {Name: "decays less", ParamGroup: 2}}
	buffer, err := megadp.NewBuffer(open(t), params, megadp.BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	groups := []megadp.ParamGroup{{}, {SetWeightDecay: true}, {WeightDecay: 0.25}}
	for i := range params {
		if err := megadp.Write(buffer, i, []float32{1}); err != nil {
			t.Fatal(err)
		}
	}
	decaying := stepOf(t, buffer, 0, megadp.OptimizerOptions{LR: 0.5, WeightDecay: 0.5, ParamGroups: groups})
	still := stepOf(t, buffer, 3, megadp.OptimizerOptions{SetLR: true, SetBeta1: true, SetBeta2: true, ParamGroups: groups})
	for i, expected := range []float32{0.75, 1, 0.875} {
		value := []float32{0}
		if err := megadp.Read(buffer, i, value); err != nil || value[0] != expected {
			t.Error(i, value, err)
		}
		for name, expected := range map[string]float32{"exp_avg": 3, "exp_avg_sq": 9} {
			state, err := still.State(i, name)
			if err != nil {
				t.Fatal(err)
			}
			if state.Float32s()[0] != expected {
				t.Error(name, state.Float32s()[0])
			}
			state.Close()
		}
	}
	if err := decaying.SetParamGroup(2, megadp.ParamGroup{SetLR: true}); err != nil {
		t.Error(err)
	}
}

// stepOf makes an optimizer, and takes one step of which all gradients are grad.
func stepOf(t *testing.T, buffer *megadp.Buffer, grad float32, options megadp.OptimizerOptions) *megadp.Optimizer {
	t.Helper()
	optimizer, err := megadp.NewOptimizer(buffer, options)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 3; i++ {
		if err := megadp.Put(buffer, i, []float32{grad}); err != nil {
			t.Fatal(err)
		}
	}
	if report, err := optimizer.Step(megadp.StepOptions{}); report.Step != 1 || report.Unchecked || err != nil {
		t.Fatal(report, err)
	}
	return optimizer
}
