// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"megadp"
)

// reducedGradients, with two ranks: norms, factors and what is written through views between Sync and Step; and each parameter's steps.
func reducedGradients() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	params := []megadp.Param{{Name: "w", Shape: []int64{4}}, {Name: "b", Shape: []int64{2}}, {Name: "late", Shape: []int64{3}}}
	buffer, err := megadp.NewBuffer(comm, params, megadp.BufferOptions{Zero0: true})
	if err != nil {
		return err
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{})
	if err != nil {
		return err
	}
	for _, err := range []error{second(buffer.GradNorm()), second(buffer.GradNormOf([]int{0})), buffer.ScaleGrads(1),
		buffer.ScaleGradsOf(1, []int{0}), buffer.GradsChanged()} {
		if wrong := mismatch(err, megadp.ErrState, "mdp_grad_"); wrong != "" {
			return errors.New(wrong)
		}
	}
	rank, err := comm.Rank()
	if err != nil {
		return err
	}
	for _, err := range []error{megadp.Put(buffer, 0, []float32{2, 2, 2, 2}), megadp.Put(buffer, 1, []float32{6 * float32(rank), 0}),
		buffer.Skip(2), buffer.Sync(context.Background())} {
		if err != nil {
			return err
		}
	}
	var problems []error
	found := []float64{}
	note := func(norm float64, err error) { found, problems = append(found, norm), append(problems, err) }
	note(buffer.GradNorm())
	note(buffer.GradNormOf([]int{1}))
	note(buffer.GradNormOf(nil))
	problems = append(problems, buffer.ScaleGrads(0.5), buffer.ScaleGradsOf(3, []int{0}), buffer.ScaleGradsOf(7, []int{}))
	view, err := buffer.Grad(0)
	if err != nil {
		return err
	}
	defer view.Close()
	found = append(found, float64(view.Float32s()[3]))
	copy(view.Float32s(), []float32{0, 0, 0, 2})
	problems = append(problems, buffer.GradsChanged())
	note(buffer.GradNormOf([]int{0, 1}))
	for _, err := range problems {
		if err != nil {
			return err
		}
	}
	for word, err := range map[string]error{"3": second(buffer.GradNormOf([]int{0, 3})), "-1": second(buffer.GradNormOf([]int{-1})),
		"'w'": second(buffer.GradNormOf([]int{0, 0})), "factor": buffer.ScaleGrads(math.NaN())} {
		if wrong := mismatch(err, megadp.ErrInvalid, word); wrong != "" {
			return errors.New(wrong)
		}
	}
	if _, err := optimizer.Step(megadp.StepOptions{}); err != nil {
		return err
	}
	var steps [3]int64
	for i := range steps {
		if steps[i], err = optimizer.Steps(i); err != nil {
			return err
		}
	}
	fmt.Println("reduced", found, "steps", steps)
	if err := setSteps(optimizer); err != nil {
		return err
	}
	if wrong := mismatch(second(optimizer.Steps(3)), megadp.ErrInvalid, "3"); wrong != "" {
		return errors.New(wrong)
	}
	return comm.Barrier(context.Background())
}

// setSteps says how many steps were taken, of all parameters alike and of each.
func setSteps(optimizer *megadp.Optimizer) error {
	if err := optimizer.SetSteps(100, nil); err != nil {
		return err
	}
	before, err := optimizer.Steps(2)
	if err != nil {
		return err
	}
	if err := optimizer.SetSteps(9, []uint64{9, 8, 7}); err != nil {
		return err
	}
	after, err := optimizer.Steps(2)
	if err != nil {
		return err
	}
	info, err := optimizer.Info()
	if err != nil {
		return err
	}
	if before != 100 || after != 7 || !strings.HasPrefix(info, `{"rule":"AdamW","steps":9,`) {
		return fmt.Errorf("steps %d, then %d; %s", before, after, info)
	}
	for word, err := range map[string]error{"3 numbers": optimizer.SetSteps(9, []uint64{9}), "at most taken": optimizer.SetSteps(9, []uint64{9, 10, 9})} {
		if wrong := mismatch(err, megadp.ErrInvalid, word); wrong != "" {
			return errors.New(wrong)
		}
	}
	return nil
}

func TestDividedByTokens(t *testing.T) {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		t.Fatal(err)
	}
	both := []megadp.Param{{Name: "a", Shape: []int64{4}, Tie: "words"}, {Name: "b", Shape: []int64{4}, Tie: "words"}}
	expect(t, second(megadp.NewBuffer(comm, both, megadp.BufferOptions{})), megadp.ErrInvalid, "same tie as parameter 0 'a'")
	buffer, err := megadp.NewBuffer(comm, both[:1], megadp.BufferOptions{Scaling: megadp.ScalingTokens})
	if err != nil {
		t.Fatal(err)
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{Norm: megadp.NormInf})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, buffer.Tokens(-1), megadp.ErrInvalid, "count is -1")
	for _, err := range []error{buffer.Tokens(4), megadp.Put(buffer, 0, []float32{6, 6, 6, 6})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	expect(t, buffer.Tokens(4), megadp.ErrState, "called already")
	expect(t, second(buffer.GradSummary()), megadp.ErrState, "not reduced")
	if err := buffer.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	wanted := megadp.GradSummary{Norm: 3, InfNorm: 1.5}
	if found, err := buffer.GradSummary(); err != nil || found != wanted {
		t.Error(found, err)
	}
	if found, err := buffer.GradSummaryOf([]int{0}); err != nil || found != wanted {
		t.Error(found, err)
	}
	if found, err := buffer.GradSummaryOf(nil); err != nil || found != (megadp.GradSummary{}) {
		t.Error(found, err)
	}
	expect(t, second(buffer.GradSummaryOf([]int{1})), megadp.ErrInvalid, "params has 1")
	if report, err := optimizer.Step(megadp.StepOptions{GradDivisor: 2}); err != nil || report.GradNorm != 0.75 {
		t.Error(report, err)
	}
}

// checkedGradients, with two ranks: what is sent as bf16, a gradient that is not finite, and the order in which gradients came.
func checkedGradients() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	rank, err := comm.Rank()
	if err != nil {
		return err
	}
	params := []megadp.Param{{Name: "v", Shape: []int64{1}, UseOrder: 1}, {Name: "u", Shape: []int64{1}}}
	buffer, err := megadp.NewBuffer(comm, params, megadp.BufferOptions{WireDType: megadp.BF16, ErrorFeedback: true, CheckFinite: true,
		CheckLarge: true, Scaling: megadp.ScalingSum})
	if err != nil {
		return err
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{})
	if err != nil {
		return err
	}
	if wrong := mismatch(second(buffer.UseOrder()), megadp.ErrState, "sync"); wrong != "" {
		return errors.New(wrong)
	}
	for _, bad := range []float32{1.006, float32(math.Inf(1))} {
		for i, value := range []float32{0, []float32{1.001, bad}[rank]} {
			if err := megadp.Put(buffer, i, []float32{value}); err != nil {
				return err
			}
		}
		norm := 0.0
		if bad < 2 {
			if err := buffer.Sync(context.Background()); err != nil {
				return err
			}
			if norm, err = buffer.GradNorm(); err != nil {
				return err
			}
		} else if wrong := mismatch(buffer.Sync(context.Background()), megadp.ErrNumeric, "'u'"); wrong != "" {
			return errors.New(wrong)
		}
		report, err := optimizer.Step(megadp.StepOptions{LossScale: 2})
		if err != nil {
			return err
		}
		order, err := buffer.UseOrder()
		if err != nil {
			return err
		}
		stats, err := buffer.Stats()
		if err != nil {
			return err
		}
		fmt.Println("checked", norm, report.Skipped, order, stats.LargeGradients)
	}
	return comm.Barrier(context.Background())
}

func TestCheckedGradients(t *testing.T) {
	lines, status := runRanks(t, 2, "checked", self(t))
	expectLines(t, lines, "checked 0 true [1 0] 0", "checked 0 true [1 0] 0", "checked 2.0078125 false [1 0] 0",
		"checked 2.0078125 false [1 0] 0")
	if status != 0 {
		t.Error(lines)
	}
}

func TestReducedGradients(t *testing.T) {
	lines, status := runRanks(t, 2, "reduced", self(t))
	expectLines(t, lines, "reduced [5 3 0 3 2.5] steps [1 1 0]", "reduced [5 3 0 3 2.5] steps [1 1 0]")
	if status != 0 {
		t.Error(status)
	}
}
