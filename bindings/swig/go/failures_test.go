// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"megadp"
)

var (
	two = []megadp.Param{{Name: "w", Shape: []int64{3, 4}}, {Name: "b", Shape: []int64{4}}}
	w   = make([]float32, 12)
	b   = []float32{1, 2, 3, 4}
)

// mismatch says how err differs from a failure with this status and these words in its text; empty when it does not.
func mismatch(err error, status megadp.Status, words ...string) string {
	var failure *megadp.Error
	if !errors.Is(err, status) || !errors.As(err, &failure) {
		return fmt.Sprintf("expected status %d, was %v", int(status), err)
	}
	for _, word := range words {
		if !strings.Contains(failure.Text, word) {
			return fmt.Sprintf("%q is not in: %s", word, failure.Text)
		}
	}
	return ""
}

func expect(t *testing.T, err error, status megadp.Status, words ...string) *megadp.Error {
	t.Helper()
	if wrong := mismatch(err, status, words...); wrong != "" {
		t.Error(wrong)
		return &megadp.Error{}
	}
	return err.(*megadp.Error)
}

func second[T any](_ T, err error) error { return err }

func TestBadArgument(t *testing.T) {
	comm := open(t)
	expect(t, second(megadp.NewComm(megadp.CommOptions{Timeout: -time.Second})), megadp.ErrInvalid, "timeout_seconds", "-1")
	expect(t, second(megadp.NewComm(megadp.CommOptions{ID: "abc"})), megadp.ErrInvalid, "id", "3 characters")
	if id, err := megadp.UniqueID(); len(id) != 256 || err != nil {
		t.Error(id, err)
	}
	twice := []megadp.Param{{Name: "b"}, {Name: "gewicht 🚀"}, {Name: "gewicht 🚀"}}
	failure := expect(t, second(megadp.NewBuffer(comm, twice, megadp.BufferOptions{})), megadp.ErrInvalid, "gewicht 🚀")
	if failure.Param != 2 || failure.Rank != -1 || failure.Bucket != -1 || failure.Name != "MDP_E_INVALID" || errors.Is(failure, megadp.ErrPeer) {
		t.Errorf("%+v", failure)
	}
	expect(t, second(megadp.NewBuffer(comm, two, megadp.BufferOptions{BucketElements: -5})), megadp.ErrInvalid, "bucket_elements", "-5")
	expect(t, megadp.AllGather(comm, w, b), megadp.ErrInvalid)
	expect(t, second(megadp.NewGrid(comm, megadp.GridOptions{TP: 2})), megadp.ErrInvalid, "tp")
	buffer, err := megadp.NewBuffer(comm, two, megadp.BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, megadp.Put(buffer, 2, b), megadp.ErrInvalid, "param", "2")
	expect(t, buffer.Ready(-1), megadp.ErrInvalid, "param", "-1")
	if failure := expect(t, megadp.Put(buffer, 1, w), megadp.ErrInvalid, "'b'"); failure.Param != 1 {
		t.Errorf("%+v", failure)
	}
	expect(t, second(megadp.NewOptimizer(buffer, megadp.OptimizerOptions{LR: -1})), megadp.ErrInvalid, "lr")
	for ignore, told := range map[bool]string{false: "MDP_BUFFER_IGNORE_MEMORY", true: "cannot map"} { // what no machine has
		big := []megadp.Param{{Name: "w", Shape: []int64{1 << 50}}}
		expect(t, second(megadp.NewBuffer(comm, big, megadp.BufferOptions{IgnoreMemory: ignore})), megadp.ErrMemory, told)
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, second(optimizer.Step(megadp.StepOptions{Stream: 8})), megadp.ErrInvalid, "stream")
	expect(t, second(optimizer.State(0, "momentum")), megadp.ErrInvalid, "name")
	for _, name := range []string{"v", "w\x00"} {
		expect(t, second(buffer.Find(name)), megadp.ErrInvalid, name[:1])
	}
	expect(t, second(comm.WorldRank(1)), megadp.ErrInvalid, "rank")
	expect(t, buffer.Broadcast(context.Background(), 1), megadp.ErrInvalid, "root")
	expect(t, second(optimizer.Step(megadp.StepOptions{})), megadp.ErrState, "never became ready") // it syncs
	if err := buffer.ZeroGrad(); err != nil {
		t.Fatal(err)
	}
	for _, scale := range []float64{0, 2} {
		for _, err := range []error{megadp.Put(buffer, 1, []float64{1, math.NaN(), 3, 4}), megadp.Put(buffer, 0, w), buffer.Sync(context.Background())} {
			if err != nil {
				t.Fatal(err)
			}
		}
		report, err := optimizer.Step(megadp.StepOptions{LossScale: scale})
		if scale == 0 {
			expect(t, err, megadp.ErrNumeric)
		} else if err != nil || !report.Skipped || report.Step != 0 {
			t.Errorf("%+v %v", report, err)
		}
	}
}

// missingGradient, with two ranks: both are told who has no gradient of what, and the training goes on.
func missingGradient() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	buffer, err := megadp.NewBuffer(comm, two, megadp.BufferOptions{})
	if err != nil {
		return err
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{})
	if err != nil {
		return err
	}
	if rank, err := comm.Rank(); err != nil {
		return err
	} else if rank == 0 {
		if err := megadp.Put(buffer, 0, w); err != nil {
			return err
		}
	}
	if err := megadp.Put(buffer, 1, b); err != nil {
		return err
	}
	err = buffer.Sync(context.Background())
	if wrong := mismatch(err, megadp.ErrState, "'w'"); wrong != "" {
		return errors.New(wrong)
	}
	fmt.Println("refused", err.(*megadp.Error).Param, err.(*megadp.Error).Rank)
	for _, err := range []error{buffer.BeginMicrobatch(true), megadp.Put(buffer, 1, b), megadp.Put(buffer, 0, w), buffer.Sync(context.Background())} {
		if err != nil {
			return err
		}
	}
	report, err := optimizer.Step(megadp.StepOptions{})
	fmt.Println("stepped", report.Step)
	return err
}

func TestMissingGradient(t *testing.T) {
	lines, status := runRanks(t, 2, "missing", self(t))
	expectLines(t, lines, "refused 0 1", "refused 0 1", "stepped 1", "stepped 1")
	if status != 0 {
		t.Error(status)
	}
}

// killedPeer, with three ranks, one of which dies: the others are told, long before the timeout, in calls of every kind.
func killedPeer() error {
	comm, err := megadp.NewComm(megadp.CommOptions{Timeout: 200 * time.Second})
	if err != nil {
		return err
	}
	buffer, err := megadp.NewBuffer(comm, two, megadp.BufferOptions{Missing: megadp.MissingZero})
	if err != nil {
		return err
	}
	view, err := buffer.Param(1)
	if err != nil {
		return err
	}
	if rank, err := comm.Rank(); err != nil {
		return err
	} else if rank == 1 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			return err
		}
		select {}
	}
	calls := []func() error{func() error { return buffer.Sync(context.Background()) }, func() error { return comm.Barrier(context.Background()) },
		func() error { return megadp.AllReduce(comm, []float32{1}, megadp.Sum) },
		func() error { return second(comm.Split(0, 0)) },
		func() error { return second(megadp.NewGrid(comm, megadp.GridOptions{})) }, comm.Lost}
	for _, call := range calls {
		err := call()
		if wrong := mismatch(err, megadp.ErrPeer, "rank 1"); wrong != "" {
			return errors.New(wrong)
		}
		fmt.Println("told", err.(*megadp.Error).Rank)
	}
	if _, err := buffer.Owned(); err != nil || view.Float32s()[3] != 0 {
		return fmt.Errorf("local memory stays readable: %v", err)
	}
	return nil
}

func TestKilledPeer(t *testing.T) {
	lines, status := runRanks(t, 3, "killed", self(t))
	expectLines(t, lines, strings.Split(strings.Repeat("told 1|", 12), "|")[:12]...)
	if status != 137 {
		t.Error(status)
	}
}

func TestUseAfterClose(t *testing.T) {
	comm := open(t)
	if err := comm.Lost(); err != nil {
		t.Error(err)
	}
	grid, err := megadp.NewGrid(comm, megadp.GridOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if size, err := grid.Size(megadp.DP); size != 1 || err != nil {
		t.Error(size, err)
	}
	buffer, err := megadp.NewBufferOn(grid, two, megadp.BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	view, err := buffer.Param(1)
	if err != nil {
		t.Fatal(err)
	}
	state, err := optimizer.State(1, "exp_avg")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < 2; i++ {
		for _, one := range []interface{ Close() error }{comm, grid, buffer, optimizer} {
			if err := one.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for i, err := range []error{comm.Barrier(context.Background()), second(comm.StartBarrier()), comm.Abort(), comm.Lost(), second(comm.Rank()), second(comm.WorldRank(0)), second(comm.EventFd()), second(comm.Split(0, 0)),
		megadp.AllReduce(comm, b, megadp.Sum), second(grid.Index(megadp.DP)), second(grid.Comm(megadp.DP)),
		second(megadp.NewBuffer(comm, two, megadp.BufferOptions{})), buffer.Sync(context.Background()), second(buffer.StartSync()), buffer.WaitAll(),
		buffer.Broadcast(context.Background(), 0), second(buffer.StartBroadcast(0)), second(buffer.Find("w")), second(buffer.Buckets()),
		buffer.Wait(0), buffer.Skip(0), buffer.ZeroGrad(), buffer.Changed(), second(buffer.Stats()), second(buffer.Owned()),
		second(buffer.GradNorm()), second(buffer.GradNormOf(nil)), buffer.ScaleGrads(1), buffer.ScaleGradsOf(1, nil), buffer.GradsChanged(),
		second(optimizer.Steps(0)), second(buffer.Grad(0)), third(buffer.Acquire(0)),
		buffer.Release(0), buffer.Ready(0), second(buffer.OwnedGrad(0)), megadp.Put(buffer, 1, b), megadp.Read(buffer, 1, b), second(optimizer.Step(megadp.StepOptions{})),
		second(optimizer.StartStep(megadp.StepOptions{})), second(optimizer.State(1, "exp_avg"))} {
		if wrong := mismatch(err, megadp.ErrState, "is closed"); wrong != "" {
			t.Errorf("call %d: %s", i, wrong)
		}
	}
	view.Float32s()[3], state.Float32s()[1] = 5, 6
	if view.Float32s()[3] != 5 || state.Float32s()[1] != 6 {
		t.Error("views outlive what they were taken from")
	}
	for i := 0; i < 2; i++ {
		view.Close()
		state.Close()
	}
	if view.Float32s() != nil || state.Bytes() != nil {
		t.Error("a closed view lends nothing")
	}
}

// Copies of handles hold what they are of when the handles that they were copied from are collected.
func TestCopiedHandles(t *testing.T) {
	type trainer struct {
		buffer    megadp.Buffer
		optimizer megadp.Optimizer
	}
	comm := open(t)
	made := func() trainer {
		buffer, err := megadp.NewBuffer(comm, two, megadp.BufferOptions{})
		if err != nil {
			t.Fatal(err)
		}
		optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return trainer{*buffer, *optimizer}
	}
	copied := made()
	for i := int64(1); i <= 3; i++ {
		runtime.GC()
		time.Sleep(10 * time.Millisecond) // finalizers have a goroutine of their own
		made()
		for _, err := range []error{megadp.Put(&copied.buffer, 1, b), megadp.Put(&copied.buffer, 0, w)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if report, err := copied.optimizer.Step(megadp.StepOptions{}); report.Step != i || err != nil {
			t.Fatal(report, err)
		}
	}
	view, err := copied.buffer.Param(0)
	if err != nil {
		t.Fatal(err)
	}
	other := *view
	view.Close()
	if other.Close(); other.Bytes() != nil {
		t.Error("a copy of a closed view lends something")
	}
}

// Objects that nobody closes are collected while others work.
func TestCollected(t *testing.T) {
	for round := 0; round < 20; round++ {
		comm, err := megadp.NewComm(megadp.CommOptions{})
		if err != nil {
			t.Fatal(err)
		}
		buffer, err := megadp.NewBuffer(comm, two, megadp.BufferOptions{})
		if err != nil {
			t.Fatal(err)
		}
		optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		for _, err := range []error{megadp.Put(buffer, 1, b), megadp.Put(buffer, 0, w)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		request, err := buffer.StartSync()
		if err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		if err := request.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		if report, err := optimizer.Step(megadp.StepOptions{}); report.Step != 1 || err != nil {
			t.Fatal(report, err)
		}
		runtime.GC()
	}
}

// heldWait waits for something that takes both of two ranks: rank 0 stops waiting before rank 1 comes, and waits again.
func heldWait(rank int, wait func(context.Context) error) error {
	flag := os.Getenv("MEGADP_TEST_FLAG")
	if rank == 0 {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := wait(ctx); !errors.Is(err, context.Canceled) { // the other rank comes only after the next line
			return fmt.Errorf("expected a cancelled wait, was %v", err)
		}
		if err := os.WriteFile(flag, nil, 0o600); err != nil {
			return err
		}
	} else {
		for _, err := os.Stat(flag); err != nil; _, err = os.Stat(flag) {
			time.Sleep(5 * time.Millisecond)
		}
	}
	return wait(context.Background())
}

// cancelled, with two ranks: who waits can stop waiting; the operation goes on, and so can the wait.
func cancelled() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	buffer, err := megadp.NewBuffer(comm, two, megadp.BufferOptions{})
	if err != nil {
		return err
	}
	for _, err := range []error{megadp.Put(buffer, 1, b), megadp.Put(buffer, 0, w)} {
		if err != nil {
			return err
		}
	}
	rank, err := comm.Rank()
	if err != nil {
		return err
	}
	if err = heldWait(rank, buffer.Sync); err != nil {
		return err
	}
	if err = goesOn(comm, rank); err == nil {
		if wrong := mismatch(second(comm.Split(1<<32, 0)), megadp.ErrInvalid, "color must be from -2147483648 to 2147483647, not 4294967296"); wrong != "" {
			err = errors.New(wrong)
		}
	}
	fmt.Println("synced", err)
	return err
}

// goesOn steps without having waited for a sync to its end: the next sync is the next step's.
func goesOn(comm *megadp.Comm, rank int) error {
	buffer, err := megadp.NewBuffer(comm, two[1:], megadp.BufferOptions{Zero0: true, NoOverlap: true})
	if err != nil {
		return err
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{Rule: megadp.RuleSGD})
	if err != nil {
		return err
	}
	for step := 0; step < 2; step++ {
		if err := megadp.Put(buffer, 0, []float32{float32(10*step + rank), 0, 0, 0}); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if step == 0 && rank == 0 {
			cancel()
		} else if step == 0 {
			time.Sleep(300 * time.Millisecond)
		}
		if err := buffer.Sync(ctx); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		grad, err := buffer.Grad(0)
		if err != nil {
			return err
		}
		if mean := grad.Float32s()[0]; step == 1 && mean != 10.5 {
			return fmt.Errorf("the second gradient begins with %v", mean)
		}
		if _, err := optimizer.Step(megadp.StepOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func TestCancelled(t *testing.T) {
	lines, status := runRanks(t, 2, "cancelled", self(t))
	expectLines(t, lines, "synced <nil>", "synced <nil>")
	if status != 0 {
		t.Error(status)
	}
}
