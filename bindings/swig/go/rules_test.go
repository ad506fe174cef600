// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"megadp"
)

// ruleCase is a rule, what it is told, and what it keeps.
type ruleCase struct {
	rule    megadp.Rule
	options megadp.OptimizerOptions
	kept    []string
}

var (
	momentum  = megadp.OptimizerOptions{Momentum: 0.75}
	moments   = megadp.OptimizerOptions{Beta1: 0.5, Beta2: 0.75, Eps: 1e-3}
	ruleCases = []ruleCase{
		{megadp.RuleAdamW, moments, []string{"exp_avg", "exp_avg_sq"}},
		{megadp.RuleAdam, moments, []string{"exp_avg", "exp_avg_sq"}},
		{megadp.RuleSGD, megadp.OptimizerOptions{}, nil},
		{megadp.RuleSGDMomentum, momentum, []string{"momentum_buffer"}},
		{megadp.RuleSGDNesterov, momentum, []string{"momentum_buffer"}},
		{megadp.RuleLion, megadp.OptimizerOptions{Beta1: 0.5, Beta2: 0.75}, []string{"exp_avg"}},
	}
)

const (
	ruleRate  = 0.125
	ruleDecay = 0.25
	ruleSteps = 6
)

func ruleGradient(step int) float64 { return math.Sin(2*float64(step)) + 0.25 }

// after is a parameter that began as 1 after all steps, and what the rule keeps of it, in float64.
func (c ruleCase) after() (w float64, state [2]float64) {
	w = 1
	o := c.options
	for step := 1; step <= ruleSteps; step++ {
		g := ruleGradient(step)
		switch c.rule {
		case megadp.RuleAdamW, megadp.RuleAdam:
			if c.rule == megadp.RuleAdam {
				g += ruleDecay * w
			} else {
				w *= 1 - ruleRate*ruleDecay
			}
			state[0] = o.Beta1*state[0] + (1-o.Beta1)*g
			state[1] = o.Beta2*state[1] + (1-o.Beta2)*g*g
			m, v := state[0]/(1-math.Pow(o.Beta1, float64(step))), state[1]/(1-math.Pow(o.Beta2, float64(step)))
			w -= ruleRate * m / (math.Sqrt(v) + o.Eps)
		case megadp.RuleLion:
			mean := o.Beta1*state[0] + (1-o.Beta1)*g
			w = w*(1-ruleRate*ruleDecay) - math.Copysign(ruleRate, mean)
			state[0] = o.Beta2*state[0] + (1-o.Beta2)*g
		default:
			g += ruleDecay * w
			state[0] = o.Momentum*state[0] + g
			w -= ruleRate * map[megadp.Rule]float64{megadp.RuleSGD: g, megadp.RuleSGDMomentum: state[0],
				megadp.RuleSGDNesterov: g + o.Momentum*state[0]}[c.rule]
		}
	}
	return w, state
}

func (c ruleCase) told() megadp.OptimizerOptions {
	options := c.options
	options.Rule, options.LR, options.WeightDecay = c.rule, ruleRate, ruleDecay
	return options
}

// group says the same as told, but to a group of an optimizer that has other values.
func (c ruleCase) group() megadp.ParamGroup {
	o := c.told()
	return megadp.ParamGroup{LR: o.LR, WeightDecay: o.WeightDecay, Beta1: o.Beta1, Beta2: o.Beta2, Momentum: o.Momentum, Eps: o.Eps}
}

func (c ruleCase) check(buffer *megadp.Buffer, optimizer *megadp.Optimizer, param int) error {
	w, state := c.after()
	found := []float32{0}
	if err := megadp.Read(buffer, param, found); err != nil {
		return err
	}
	if math.Abs(float64(found[0])-w) > 1e-5 {
		return fmt.Errorf("rule %d, parameter %d: %v; expected %v", c.rule, param, found[0], w)
	}
	for i, name := range c.kept {
		view, err := optimizer.State(param, name)
		if err != nil {
			return err
		}
		if values := view.Float32s(); len(values) > 1 || (len(values) == 1 && math.Abs(float64(values[0])-state[i]) > 1e-5) {
			return fmt.Errorf("rule %d, %s: %v; expected %v", c.rule, name, values, state[i])
		}
		view.Close()
	}
	if len(c.kept) == 0 {
		if wrong := mismatch(second(optimizer.State(param, "exp_avg")), megadp.ErrInvalid, "name is 'exp_avg'"); wrong != "" {
			return errors.New(wrong)
		}
	}
	return nil
}

func firstOf(problems ...error) error {
	for _, err := range problems {
		if err != nil {
			return err
		}
	}
	return nil
}

func twoGroups(comm *megadp.Comm) (*megadp.Buffer, error) {
	buffer, err := megadp.NewBuffer(comm, []megadp.Param{{Name: "w"}, {Name: "v", ParamGroup: 1}}, megadp.BufferOptions{})
	if err != nil {
		return nil, err
	}
	return buffer, firstOf(megadp.Write(buffer, 0, []float32{1}), megadp.Write(buffer, 1, []float32{1}))
}

func putBoth(buffer *megadp.Buffer, step int) error {
	gradient := []float32{float32(ruleGradient(step))}
	return firstOf(megadp.Put(buffer, 0, gradient), megadp.Put(buffer, 1, gradient))
}

// rulesTogether, with one rank or two: each rule in an optimizer by itself, and beside another rule in a second optimizer of the buffer.
func rulesTogether() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	for i, one := range ruleCases {
		if err := ruleAlone(comm, one); err != nil {
			return err
		}
		if err := rulePair(comm, one, ruleCases[(i+2)%len(ruleCases)]); err != nil {
			return err
		}
	}
	fmt.Println("as the formulas")
	return comm.Close()
}

func ruleAlone(comm *megadp.Comm, one ruleCase) error {
	buffer, err := twoGroups(comm)
	if err != nil {
		return err
	}
	options := megadp.OptimizerOptions{Rule: one.rule, ParamGroups: []megadp.ParamGroup{one.group(), one.group()}}
	optimizer, err := megadp.NewOptimizer(buffer, options)
	if err != nil {
		return err
	}
	for step := 1; step <= ruleSteps; step++ {
		if err := firstOf(putBoth(buffer, step), second(optimizer.Step(megadp.StepOptions{}))); err != nil {
			return err
		}
	}
	return firstOf(one.check(buffer, optimizer, 0), one.check(buffer, optimizer, 1), optimizer.Close(), buffer.Close())
}

// rulePair saves and loads half-way.
func rulePair(comm *megadp.Comm, one, other ruleCase) error {
	buffer, err := twoGroups(comm)
	if err != nil {
		return err
	}
	var optimizers []*megadp.Optimizer
	for group, each := range []ruleCase{one, other} {
		options := each.told()
		options.SomeGroups, options.FirstParamGroup = true, uint32(group)
		optimizer, err := megadp.NewOptimizer(buffer, options)
		if err != nil {
			return err
		}
		optimizers = append(optimizers, optimizer)
	}
	folder := filepath.Dir(os.Getenv("MEGADP_TEST_FLAG"))
	for step := 1; step <= ruleSteps; step++ {
		if err := putBoth(buffer, step); err != nil {
			return err
		}
		if step%2 == 0 {
			request, err := megadp.StartStepMany(optimizers, megadp.StepOptions{})
			if err != nil {
				return err
			}
			if err := request.Wait(context.Background()); err != nil {
				return err
			}
		} else if report, err := megadp.StepMany(optimizers, megadp.StepOptions{}); err != nil || report.Step != int64(step) {
			return fmt.Errorf("%+v, %w", report, err)
		}
		if step == ruleSteps/2 {
			if err := saveAndLoad(folder, buffer, optimizers); err != nil {
				return err
			}
		}
	}
	// Otherwise this rank, when it ends, would have died to one that is behind.
	return firstOf(one.check(buffer, optimizers[0], 0), other.check(buffer, optimizers[1], 1), optimizers[0].Close(), optimizers[1].Close(),
		buffer.Close())
}

func saveAndLoad(folder string, buffer *megadp.Buffer, optimizers []*megadp.Optimizer) error {
	if err := megadp.SaveCheckpointOf(folder, buffer, optimizers, megadp.SaveOptions{Keep: 1}); err != nil {
		return err
	}
	request, err := megadp.StartSaveCheckpointOf(folder, buffer, optimizers, megadp.SaveOptions{Keep: 1})
	if err != nil {
		return err
	}
	return firstOf(request.Wait(context.Background()), megadp.Write(buffer, 0, []float32{9}), optimizers[1].SetSteps(7, nil),
		megadp.LoadCheckpointOf(folder, buffer, optimizers, megadp.LoadOptions{}))
}

func TestRules(t *testing.T) {
	for ranks := 1; ranks <= 2; ranks++ {
		lines, status := runRanks(t, ranks, "rules", self(t))
		expectLines(t, lines, []string{"as the formulas", "as the formulas"}[:ranks]...)
		if status != 0 {
			t.Error(status)
		}
	}
}

func TestRefusedRules(t *testing.T) {
	buffer, err := twoGroups(open(t))
	if err != nil {
		t.Fatal(err)
	}
	for words, options := range map[string]megadp.OptimizerOptions{"config.rule is 99": {Rule: 99}, "AdamW has none": {Momentum: 0.5},
		"SGD has none": {Rule: megadp.RuleSGD, SetBeta1: true}, "config.param_groups[0].momentum is 0.5": {Rule: megadp.RuleLion,
			ParamGroups: []megadp.ParamGroup{{Momentum: 0.5}}}} {
		expect(t, second(megadp.NewOptimizer(buffer, options)), megadp.ErrInvalid, words)
	}
	made := func(first uint32, options megadp.OptimizerOptions) *megadp.Optimizer {
		options.SomeGroups, options.FirstParamGroup = true, first
		optimizer, err := megadp.NewOptimizer(buffer, options)
		if err != nil {
			t.Fatal(err)
		}
		return optimizer
	}
	first, other := made(0, megadp.OptimizerOptions{}), made(1, megadp.OptimizerOptions{MaxGradNorm: 1})
	many := func(options megadp.StepOptions, optimizers ...*megadp.Optimizer) error {
		return second(megadp.StepMany(optimizers, options))
	}
	if err := putBoth(buffer, 1); err != nil {
		t.Fatal(err)
	}
	expect(t, many(megadp.StepOptions{}), megadp.ErrInvalid, "give at least one")
	expect(t, many(megadp.StepOptions{}, first), megadp.ErrInvalid, "'v' is in parameter group 1")
	expect(t, many(megadp.StepOptions{}, first, other), megadp.ErrInvalid, "clips otherwise")
	other = made(1, megadp.OptimizerOptions{Rule: megadp.RuleSGD})
	expect(t, many(megadp.StepOptions{LR: 0.5}, first, other), megadp.ErrInvalid, "config.lr is 0.5")
	expect(t, many(megadp.StepOptions{}, first, other, other), megadp.ErrInvalid, "which both")
	if err := many(megadp.StepOptions{}, first, other); err != nil {
		t.Error(err)
	}
	other.Close()
	expect(t, many(megadp.StepOptions{}, first, other), megadp.ErrState, "this Optimizer is closed")
}

func TestScaler(t *testing.T) {
	comm := open(t)
	buffer, err := megadp.NewBuffer(comm, []megadp.Param{{Name: "w"}}, megadp.BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{Rule: megadp.RuleSGD, LR: 1})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, second(optimizer.Scaler()), megadp.ErrState, "no loss scaler")
	expect(t, second(optimizer.Scale()), megadp.ErrState, "no loss scaler")
	expect(t, optimizer.SetScaler(megadp.Scaler{BackoffFactor: 1}), megadp.ErrInvalid, "scaler.backoff_factor is 1")
	expect(t, optimizer.SetScaler(megadp.Scaler{Hysteresis: 1 << 32}), megadp.ErrInvalid, "hysteresis is 4294967296")
	expect(t, optimizer.SetScaler(megadp.Scaler{CleanSteps: -1}), megadp.ErrInvalid, "clean_steps", "-1")
	if err := optimizer.SetScaler(megadp.Scaler{Scale: 1024, GrowthInterval: 3, Hysteresis: 2}); err != nil {
		t.Fatal(err)
	}
	view, err := optimizer.Scale()
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	scales := []float32{1024, 1024, 512, 256, 256, 256, 512, 512}
	for i, kind := range "x.xx...x" {
		gradient := 0.25 * view.Float32s()[0]
		if kind == 'x' {
			gradient = float32(math.Inf(-1))
		}
		if err := megadp.Put(buffer, 0, []float32{gradient}); err != nil {
			t.Fatal(err)
		}
		report, err := optimizer.Step(megadp.StepOptions{})
		if err != nil || report.Skipped != (kind == 'x') || view.Float32s()[0] != scales[i] {
			t.Error(i, report, view.Float32s(), err)
		}
	}
	wanted := megadp.Scaler{Scale: 512, GrowthFactor: 2, BackoffFactor: 0.5, MinScale: 1, GrowthInterval: 3, Hysteresis: 2, Overflows: 1}
	if found, err := optimizer.Scaler(); err != nil || found != wanted {
		t.Error(found, err)
	}
	w := []float32{0}
	if err := firstOf(megadp.Read(buffer, 0, w), megadp.Put(buffer, 0, []float32{1})); err != nil || w[0] != -1 {
		t.Error(w, err)
	}
	expect(t, second(optimizer.Step(megadp.StepOptions{LossScale: 2})), megadp.ErrInvalid, "config.loss_scale is 2")
	if err := firstOf(optimizer.RemoveScaler(), second(optimizer.Step(megadp.StepOptions{LossScale: 2}))); err != nil {
		t.Error(err)
	}
}

func TestAverages(t *testing.T) {
	comm := open(t)
	buffer, err := megadp.NewBuffer(comm, []megadp.Param{{Name: "w"}}, megadp.BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{Rule: megadp.RuleSGD, LR: 1, AverageDecay: 0.75})
	if err != nil {
		t.Fatal(err)
	}
	w := []float32{0}
	if err := firstOf(megadp.Put(buffer, 0, []float32{-4}), second(optimizer.Step(megadp.StepOptions{}))); err != nil {
		t.Fatal(err)
	}
	err = optimizer.Averaged(func() error {
		expect(t, second(optimizer.Step(megadp.StepOptions{})), megadp.ErrState, "swap them back first")
		return megadp.Read(buffer, 0, w)
	})
	if err != nil || w[0] != 1 {
		t.Error(w, err)
	}
	if err := megadp.Read(buffer, 0, w); err != nil || w[0] != 4 {
		t.Error(w, err)
	}
	func() {
		defer func() {
			if caught := recover(); caught != "a bad sample" {
				t.Error(caught)
			}
		}()
		t.Error(optimizer.Averaged(func() error { panic("a bad sample") }))
	}()
	if err := firstOf(megadp.Read(buffer, 0, w), megadp.Put(buffer, 0, []float32{0})); err != nil || w[0] != 4 {
		t.Error("after a panic", w, err)
	}
	plain, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, plain.Averaged(func() error { return nil }), megadp.ErrState, "keeps no average")
}
