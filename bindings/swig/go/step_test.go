// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"megadp"
)

const callersSteps = 10

var (
	callersParams = []megadp.Param{{Name: "a", Shape: []int64{301}}, {Name: "b", DType: megadp.BF16, Shape: []int64{200}, ParamGroup: 1}}
	callersGroups = []megadp.ParamGroup{{Beta1: 0.75}, {LR: 0.0625, WeightDecay: 0.5}}
)

// callersBuffer has values that all ranks know.
func callersBuffer(comm *megadp.Comm) (*megadp.Buffer, error) {
	buffer, err := megadp.NewBuffer(comm, callersParams, megadp.BufferOptions{BucketElements: 100})
	for p := 0; err == nil && p < len(callersParams); p++ {
		start := make([]float32, callersParams[p].Shape[0])
		for i := range start {
			start[i] = float32(i%19-9) / 8
		}
		err = megadp.Write(buffer, p, start)
	}
	return buffer, err
}

// callersOptimizer has the groups from first on, all of them if that is 0 and not some.
func callersOptimizer(buffer *megadp.Buffer, rule megadp.Rule, first int, some bool) (*megadp.Optimizer, error) {
	options := megadp.OptimizerOptions{Rule: rule, LR: 0.03125, WeightDecay: 0.125, MaxGradNorm: 0.5, ParamGroups: callersGroups}
	if some {
		options.SomeGroups, options.FirstParamGroup, options.ParamGroups = true, uint32(first), callersGroups[first:first+1]
	}
	if rule == megadp.RuleCaller {
		options.State = []string{"exp_avg", "exp_avg_sq"}
	}
	return megadp.NewOptimizer(buffer, options)
}

// putCallers, where in step 3 the last rank has an element that is not finite.
func putCallers(comm *megadp.Comm, buffer *megadp.Buffer, step int) error {
	rank, _ := comm.Rank()
	ranks, _ := comm.Size()
	for p := len(callersParams) - 1; p >= 0; p-- {
		grad := make([]float32, callersParams[p].Shape[0])
		for i := range grad {
			grad[i] = float32((i*(7+p)+step*5+rank*3)%23-11) / 16
		}
		if step == 3 && rank == ranks-1 && p == 0 {
			grad[17] = float32(math.NaN())
		}
		if err := megadp.Put(buffer, p, grad); err != nil {
			return err
		}
	}
	return nil
}

// adamW in the library's order of operations; conversions keep products from being fused with sums.
func adamW(piece *megadp.Piece) {
	power1, power2 := 1.0, 1.0
	for i := int64(0); i < piece.Step; i++ {
		power1 *= piece.Beta1
		power2 *= piece.Beta2
	}
	beta1, rest1, beta2, rest2 := float32(piece.Beta1), float32(1-piece.Beta1), float32(piece.Beta2), float32(1-piece.Beta2)
	decay, eps := float32(1-float64(piece.LR*piece.WeightDecay)), float32(piece.Eps)
	stepSize, root := float32(piece.LR/(1-power1)), float32(math.Sqrt(1-power2))
	m, v := piece.State[0], piece.State[1]
	for i, g := range piece.Grad {
		m[i] = float32(beta1*m[i]) + float32(rest1*g)
		v[i] = float32(beta2*v[i]) + float32(float32(rest2*g)*g)
		moved := float32(stepSize*m[i]) / (float32(math.Sqrt(float64(v[i])))/root + eps)
		piece.Master[i] = float32(piece.Master[i]*decay) - moved
	}
}

// updateAll takes the step to its end; seen is how many elements it has updated.
func updateAll(step *megadp.Step, number int) (report megadp.StepReport, seen int64, err error) {
	defer step.Close()
	for {
		piece, err := step.Next()
		if err != nil {
			return report, seen, err
		}
		if piece == nil {
			break
		}
		if piece.Optimizer != number || int64(len(piece.Master)) != piece.Count || len(piece.Grad) != len(piece.Master) || len(piece.State) != 2 {
			return report, seen, fmt.Errorf("%+v", piece)
		}
		adamW(piece)
		seen += piece.Count
	}
	report, err = step.Finish()
	return report, seen, err
}

// sameBits of all parameters.
func sameBits(left, right *megadp.Buffer) error {
	for p, param := range callersParams {
		a, b := make([]float32, param.Shape[0]), make([]float32, param.Shape[0])
		if err := firstOf(megadp.Read(left, p, a), megadp.Read(right, p, b)); err != nil {
			return err
		}
		for i := range a {
			if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
				return fmt.Errorf("%s[%d]: %v, and %v of the library's rule", param.Name, i, b[i], a[i])
			}
		}
	}
	return nil
}

// sameState of all that both keep.
func sameState(left, right *megadp.Optimizer) error {
	for p := range callersParams {
		for _, name := range []string{"master", "exp_avg", "exp_avg_sq"} {
			a, err := left.State(p, name)
			if err != nil {
				return err
			}
			b, err := right.State(p, name)
			if err != nil {
				return err
			}
			if string(a.Bytes()) != string(b.Bytes()) {
				return fmt.Errorf("%s of %d: %v, and %v of the library's rule", name, p, b.Float32s(), a.Float32s())
			}
			a.Close()
			b.Close()
		}
	}
	return nil
}

// callersOwn, with one rank or two: AdamW written here gives the library's bits, by itself and beside the library's in one step; then what
// becomes of failures.
func callersOwn() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	for number := -1; number <= 1; number++ {
		if err := callersBeside(comm, number); err != nil {
			return fmt.Errorf("%d: %w", number, err)
		}
	}
	if err := callersFailures(comm); err != nil {
		return err
	}
	if err := callersWhole(comm); err != nil {
		return err
	}
	fmt.Println("the library's bits")
	return comm.Close()
}

// callersBeside an optimizer of the library's; -1: all groups are the caller's rule's, otherwise the one with that number.
func callersBeside(comm *megadp.Comm, number int) error {
	wanted, err := callersBuffer(comm)
	if err != nil {
		return err
	}
	own, err := callersOptimizer(wanted, megadp.RuleAdamW, 0, false)
	if err != nil {
		return err
	}
	buffer, err := callersBuffer(comm)
	if err != nil {
		return err
	}
	var optimizers []*megadp.Optimizer
	for group := 0; group < 2 && (number >= 0 || group == 0); group++ {
		rule := megadp.RuleAdamW
		if number < 0 || group == number {
			rule = megadp.RuleCaller
		}
		optimizer, err := callersOptimizer(buffer, rule, group, number >= 0)
		if err != nil {
			return err
		}
		optimizers = append(optimizers, optimizer)
	}
	for at := 1; at <= callersSteps; at++ {
		options := megadp.StepOptions{LossScale: 2}
		if err := firstOf(putCallers(comm, wanted, at), putCallers(comm, buffer, at)); err != nil {
			return err
		}
		expected, err := own.Step(options)
		if err != nil {
			return err
		}
		var step *megadp.Step
		if number < 0 {
			step, err = optimizers[0].BeginStep(options)
		} else {
			step, err = megadp.BeginStepMany(optimizers, options)
		}
		if err != nil {
			return err
		}
		report, seen, err := updateAll(step, map[bool]int{true: number}[number >= 0])
		if err != nil || fmt.Sprint(report) != fmt.Sprint(expected) || report.Skipped != (at == 3) || (seen == 0) != report.Skipped {
			return fmt.Errorf("step %d, %d elements: %+v, expected %+v: %w", at, seen, report, expected, err)
		}
		if err := sameBits(wanted, buffer); err != nil {
			return err
		}
		if number < 0 {
			if err := sameState(own, optimizers[0]); err != nil {
				return err
			}
		}
	}
	return firstOf(buffer.Close(), wanted.Close())
}

// callersFailures: the last rank cannot update a piece, or leaves one. All ranks are told, until they say that they go on.
func callersFailures(comm *megadp.Comm) error {
	rank, _ := comm.Rank()
	ranks, _ := comm.Size()
	buffer, err := callersBuffer(comm)
	if err != nil {
		return err
	}
	optimizer, err := callersOptimizer(buffer, megadp.RuleCaller, 0, false)
	if err != nil {
		return err
	}
	ends := map[string]func(*megadp.Step) string{
		"fail": func(step *megadp.Step) string {
			if err := firstOf(step.Fail(), step.Close()); err != nil {
				return err.Error()
			}
			return mismatch(step.Fail(), megadp.ErrState, "this Step is over")
		},
		"close": func(step *megadp.Step) string {
			if err := step.Close(); err != nil {
				return err.Error()
			}
			return mismatch(second(step.Next()), megadp.ErrState, "this Step is over")
		},
		"leave": func(step *megadp.Step) string {
			return mismatch(second(step.Finish()), megadp.ErrState, "has a piece that was not asked for")
		},
	}
	for _, name := range []string{"fail", "close", "leave"} {
		if err := putCallers(comm, buffer, 1); err != nil {
			return err
		}
		step, err := optimizer.BeginStep(megadp.StepOptions{})
		if err != nil {
			return err
		}
		wrong := ""
		if rank == ranks-1 {
			if _, err := step.Next(); err != nil {
				return err
			}
			wrong = mismatch(second(optimizer.BeginStep(megadp.StepOptions{})), megadp.ErrState, "a step is under way") + ends[name](step)
		} else if _, _, err = updateAll(step, 0); !errors.Is(err, map[bool]megadp.Status{true: megadp.ErrState, false: megadp.ErrAborted}[name == "leave"]) {
			wrong = fmt.Sprintf("not told: %v", err)
		}
		if wrong != "" {
			return fmt.Errorf("%s: %s", name, wrong)
		}
		if err := putCallers(comm, buffer, 2); err != nil {
			return err
		}
		if wrong := mismatch(second(optimizer.BeginStep(megadp.StepOptions{})), megadp.ErrState, "are not whole"); wrong != "" {
			return errors.New(wrong)
		}
		if err := optimizer.SetSteps(0, nil); err != nil {
			return err
		}
		if step, err = optimizer.BeginStep(megadp.StepOptions{}); err != nil {
			return err
		}
		if _, _, err := updateAll(step, 0); err != nil {
			return err
		}
	}
	return nil
}

// callersWhole: of the first parameter bytes are kept, of the second none; only the first's owner has them.
func callersWhole(comm *megadp.Comm) error {
	params := []megadp.Param{callersParams[0], callersParams[1]}
	for p := range params {
		params[p].Whole, params[p].ParamGroup = true, 0
	}
	buffer, err := megadp.NewBuffer(comm, params, megadp.BufferOptions{})
	if err != nil {
		return err
	}
	keeping := func(bytes ...uint64) (*megadp.Optimizer, error) {
		return megadp.NewOptimizer(buffer, megadp.OptimizerOptions{Rule: megadp.RuleCaller, ParamStates: []megadp.ParamState{{Name: "seen", Bytes: bytes}}})
	}
	if wrong := mismatch(second(keeping(3)), megadp.ErrInvalid, "the bytes of 'seen' must be 2 numbers from 0 on"); wrong != "" {
		return errors.New(wrong)
	}
	optimizer, err := keeping(3, 0)
	if err != nil {
		return err
	}
	owned := 0
	for _, at := range []int{1, 2, 4} { // not 3, whose gradient is not finite
		if err := putCallers(comm, buffer, at); err != nil {
			return err
		}
		step, err := optimizer.BeginStep(megadp.StepOptions{})
		if err != nil {
			return err
		}
		defer step.Close()
		for {
			piece, err := step.Next()
			if err != nil {
				return err
			}
			if piece == nil {
				break
			}
			if piece.ParamBegin != 0 || piece.Count != params[piece.Param].Shape[0] || len(piece.ParamStates) != 1 ||
				len(piece.ParamStates[0]) != 3*(1-piece.Param) {
				return fmt.Errorf("%+v", piece)
			}
			if piece.Param == 0 {
				piece.ParamStates[0][2] += byte(at)
				owned = 3
			}
		}
		if _, err := step.Finish(); err != nil {
			return err
		}
	}
	for p, expected := range []string{"\x00\x00\x07"[:owned], ""} {
		seen, err := optimizer.State(p, "seen")
		if err != nil {
			return err
		}
		if string(seen.Bytes()) != expected {
			return fmt.Errorf("bytes of %d: %v, not %q", p, seen.Bytes(), expected)
		}
		seen.Close()
	}
	return nil
}

func TestCallersOwn(t *testing.T) {
	for ranks := 1; ranks <= 2; ranks++ {
		lines, status := runRanks(t, ranks, "caller's own", self(t))
		expectLines(t, lines, []string{"the library's bits", "the library's bits"}[:ranks]...)
		if status != 0 {
			t.Error(status)
		}
	}
}

func TestRefusedState(t *testing.T) {
	buffer, err := callersBuffer(open(t))
	if err != nil {
		t.Fatal(err)
	}
	for words, names := range map[string][]string{"'a b'": {"a b"}, "'a\nb'": {"a\nb"}, "''": {""}, "'master'": {"master"}, "twice": {"x", "x"},
		"names 5 arrays": {"a", "b", "c", "d", "e"}} {
		expect(t, second(megadp.NewOptimizer(buffer, megadp.OptimizerOptions{Rule: megadp.RuleCaller, State: names})), megadp.ErrInvalid, words)
	}
	expect(t, second(megadp.NewOptimizer(buffer, megadp.OptimizerOptions{Rule: megadp.RuleLion, State: []string{"mine"}})), megadp.ErrInvalid,
		"Lion has its own")
	optimizer, err := callersOptimizer(buffer, megadp.RuleCaller, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := firstOf(megadp.Put(buffer, 1, make([]float32, 200)), megadp.Put(buffer, 0, make([]float32, 301))); err != nil {
		t.Fatal(err)
	}
	expect(t, second(optimizer.Step(megadp.StepOptions{})), megadp.ErrState, "no update function")
	expect(t, second(megadp.BeginStepMany(nil, megadp.StepOptions{})), megadp.ErrInvalid, "give at least one")
	optimizer.Close()
	expect(t, second(optimizer.BeginStep(megadp.StepOptions{})), megadp.ErrState, "this Optimizer is closed")
}
