// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"runtime"

	"megadp/internal/shim"
)

// ParamGroup is one group of parameters. What is zero is the optimizer's, unless SetLR, SetWeightDecay, SetBeta1, SetBeta2, SetMomentum say
// that it is meant.
type ParamGroup struct {
	LR, WeightDecay, Beta1, Beta2, Momentum, Eps           float64
	SetLR, SetWeightDecay, SetBeta1, SetBeta2, SetMomentum bool
}

func (g ParamGroup) raw() shim.ParamGroup {
	raw := shim.NewParamGroup()
	give(g.LR, g.SetLR, raw.SetLr)
	give(g.WeightDecay, g.SetWeightDecay, raw.SetWeight_decay)
	give(g.Beta1, g.SetBeta1, raw.SetBeta1)
	give(g.Beta2, g.SetBeta2, raw.SetBeta2)
	give(g.Momentum, g.SetMomentum, raw.SetMomentum)
	raw.SetEps(g.Eps)
	return raw
}

// give hands a value over that is not zero, or is zero and meant.
func give(value float64, meant bool, set func(float64)) {
	if value != 0 || meant {
		set(value)
	}
}

// Rule is what a step does.
type Rule int

// AdamW (the default) and Lion have decoupled weight decay; of the others it is L2 regularization. RuleCaller is what you do with the pieces of
// Optimizer.BeginStep.
var (
	RuleAdamW       = Rule(shim.Rule_ADAMW)
	RuleAdam        = Rule(shim.Rule_ADAM)
	RuleSGD         = Rule(shim.Rule_SGD)
	RuleSGDMomentum = Rule(shim.Rule_SGD_MOMENTUM)
	RuleSGDNesterov = Rule(shim.Rule_SGD_NESTEROV)
	RuleLion        = Rule(shim.Rule_LION)
	RuleCaller      = Rule(shim.Rule_CALLER)
)

// Norm is one of all gradients together.
type Norm int

// The root of the sum of squares (the default), or the largest magnitude.
var (
	NormL2  = Norm(shim.Norm_L2)
	NormInf = Norm(shim.Norm_INF)
)

// ParamState names bytes, zero at first, that the owner of a whole parameter keeps of it: of each parameter so many, 0: none.
type ParamState struct {
	Name  string
	Bytes []uint64
}

// OptimizerOptions of a Rule; what it has not is to be left zero. Zero: LR 1e-3 (Lion 1e-4), Beta1 0.9, Beta2 0.999 (Lion 0.99) and Momentum
// 0.9, unless SetLR, SetBeta1, SetBeta2, SetMomentum say that zero is meant; Eps 1e-8, no weight decay, no clipping. ParamGroups may have
// their own values. With SomeGroups the optimizer has but the groups from FirstParamGroup on, as many as ParamGroups has: StepMany. State names
// the arrays that RuleCaller keeps, float32 and zero at first, at most 4; ParamStates what it keeps of whole parameters, at most 4. With AverageDecay, such as 0.999, a moving average of the parameters is
// kept: Averaged. With Bf16State what the rule keeps is bf16, rounded to nearest, or with StochasticState stochastically; with NoMaster bf16
// parameters have no masters and are rounded so; Seed is that rounding's.
type OptimizerOptions struct {
	Rule                                                      Rule
	LR, Beta1, Beta2, Momentum, Eps, WeightDecay, MaxGradNorm float64
	MaxGradValue                                              float64 // clips each element, last
	Norm                                                      Norm    // what MaxGradNorm and the report are of
	SetLR, SetBeta1, SetBeta2, SetMomentum                    bool
	ParamGroups                                               []ParamGroup
	FirstParamGroup                                           uint32
	SomeGroups                                                bool
	State                                                     []string
	ParamStates                                               []ParamState
	AverageDecay                                              float64
	Bf16State, StochasticState, NoMaster, CheckUpdate         bool
	Seed                                                      int64
}

// StepOptions of one step. LR replaces the optimizer's from this step on (0: unchanged, unless SetLR). Gradients are divided by LossScale;
// with one given, a gradient that is not finite makes all ranks skip the step. By GradDivisor, such as the number of microbatches, they are
// divided too. Unchecked: no norm is computed, and what is not finite spreads; EInvalid with clipping, a LossScale or scaler, RuleCaller. On
// one node, without overlap and unless Buffer.Sync came before, gradients are then reduced, parameters updated and gathered in one pass.
// Stream, with CUDA: the address of the cudaStream_t that the
// step's work goes with; 0, as all other calls here have it: the device's default stream.
type StepOptions struct {
	LR, LossScale, GradDivisor float64
	SetLR, Unchecked           bool
	Stream                     uintptr
}

func (o StepOptions) raw() shim.StepOptions {
	raw := shim.NewStepOptions()
	give(o.LR, o.SetLR, raw.SetLr)
	raw.SetLoss_scale(o.LossScale)
	raw.SetGrad_divisor(o.GradDivisor)
	raw.SetStream(int64(o.Stream))
	raw.SetUnchecked(o.Unchecked)
	return raw
}

// StepReport is how a step went: the gradient's norm before clipping, and how many steps were taken.
type StepReport struct {
	GradNorm, ClipFactor, LossScale float64
	Step                            int64
	Skipped, Clipped, Unchecked     bool
}

// Optimizer is a Rule over this rank's shard.
type Optimizer struct {
	*owned[shim.Optimizer]
}

func (o OptimizerOptions) raw() shim.OptimizerOptions {
	raw := shim.NewOptimizerOptions()
	raw.SetRule(shim.MegadpRule(o.Rule))
	give(o.LR, o.SetLR, raw.SetLr)
	give(o.Beta1, o.SetBeta1, raw.SetBeta1)
	give(o.Beta2, o.SetBeta2, raw.SetBeta2)
	give(o.Momentum, o.SetMomentum, raw.SetMomentum)
	if o.SomeGroups || o.FirstParamGroup != 0 {
		raw.SetFirst_param_group(int64(o.FirstParamGroup))
	}
	raw.SetEps(o.Eps)
	raw.SetAverage_decay(o.AverageDecay)
	raw.SetBf16_state(o.Bf16State)
	raw.SetStochastic_state(o.StochasticState)
	raw.SetNo_master(o.NoMaster)
	raw.SetCheck_update(o.CheckUpdate)
	raw.SetSeed(o.Seed)
	raw.SetWeight_decay(o.WeightDecay)
	raw.SetMax_grad_norm(o.MaxGradNorm)
	raw.SetMax_grad_value(o.MaxGradValue)
	raw.SetNorm(shim.MegadpNorm(o.Norm))
	for _, group := range o.ParamGroups {
		rawGroup := group.raw()
		raw.Add_param_group(rawGroup)
		shim.DeleteParamGroup(rawGroup)
	}
	for _, name := range o.State {
		raw.Add_state(name)
	}
	for _, state := range o.ParamStates {
		bytes := countsOf(state.Bytes)
		raw.Add_param_state(state.Name, bytes)
		shim.DeleteCounts(bytes)
	}
	return raw
}

// NewOptimizer is collective over the buffer's world, with equal options.
func NewOptimizer(buffer *Buffer, options OptimizerOptions) (*Optimizer, error) {
	raw := options.raw()
	defer shim.DeleteOptimizerOptions(raw)
	made, err := ask(buffer, func(failure shim.Failure) shim.Optimizer { return shim.OptimizerCreate(buffer.raw, raw, failure) })
	if err != nil {
		return nil, err
	}
	return &Optimizer{own(made, shim.DeleteOptimizer)}, nil
}

// SetParamGroup replaces a group's values from the next step on; alike on all ranks.
func (o *Optimizer) SetParamGroup(number int, group ParamGroup) error {
	raw := group.raw()
	defer shim.DeleteParamGroup(raw)
	return call(o, func(failure shim.Failure) { o.raw.Set_param_group(int64(number), raw, failure) })
}

// Step takes a step: it syncs where Buffer.Sync was not called, and returns when all parameters are whole. Collective.
func (o *Optimizer) Step(options StepOptions) (StepReport, error) {
	rawOptions := options.raw()
	defer shim.DeleteStepOptions(rawOptions)
	raw, err := ask(o, func(failure shim.Failure) shim.StepReport { return o.raw.Step(rawOptions, failure) })
	if err != nil {
		return StepReport{}, err
	}
	return reportOf(raw), nil
}

func reportOf(raw shim.StepReport) StepReport {
	defer shim.DeleteStepReport(raw)
	return StepReport{raw.GetGrad_norm(), raw.GetClip_factor(), raw.GetLoss_scale(), raw.GetStep(), raw.GetSkipped(), raw.GetClipped(),
		raw.GetUnchecked()}
}

// StartStep takes a step without a report: it waits for the sync alone, if that was not called, and returns while the step is at work on
// parameters and gradients. Read, Buffer.Wait and WaitAll wait for parameters; the request ends when all are whole. Collective.
func (o *Optimizer) StartStep(options StepOptions) (*Request, error) {
	raw := options.raw()
	defer shim.DeleteStepOptions(raw)
	return newRequest(ask(o, func(failure shim.Failure) shim.Request { return o.raw.Start_step(raw, failure) }))
}

// State lends the owned piece of a parameter's "master", or of what the rule keeps ("exp_avg", "exp_avg_sq", "momentum_buffer",
// of RuleCaller what its State and ParamStates name); Range.ParamBegin says where it begins.
func (o *Optimizer) State(param int, name string) (*View, error) {
	return newView(ask(o, func(failure shim.Failure) shim.View { return o.raw.State(int64(param), name, failure) }))
}

// Steps is how many steps the parameter has taken part in: not counted are skipped ones, and those for which all ranks had skipped it.
func (o *Optimizer) Steps(param int) (int64, error) {
	return ask(o, func(failure shim.Failure) int64 { return o.raw.Steps(int64(param), failure) })
}

// SetSteps goes on as after taken steps, from which reports count on; steps is in how many of them each parameter has taken part, nil: in
// all. It restores what was saved, with State. To be called alike on all ranks.
func (o *Optimizer) SetSteps(taken int64, steps []uint64) error {
	if steps == nil {
		return call(o, func(failure shim.Failure) { o.raw.Set_steps(taken, failure) })
	}
	list := countsOf(steps)
	defer shim.DeleteCounts(list)
	return call(o, func(failure shim.Failure) { o.raw.Set_steps_of(taken, list, failure) })
}

// Info is the rule, its values, groups, steps taken and what State lends, as JSON. It waits for the last step.
func (o *Optimizer) Info() (string, error) {
	return ask(o, func(failure shim.Failure) string { return o.raw.Info(failure) })
}

// Close drops the handle.
func (o *Optimizer) Close() error {
	o.raw.Close()
	runtime.KeepAlive(o)
	return nil
}
