// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"runtime"

	"megadp/internal/shim"
)

// Group is one group of parameters. LR 0: the optimizer's, unless SetLR.
type Group struct {
	LR, WeightDecay float64
	SetLR           bool
}

func (g Group) raw() shim.Group {
	raw := shim.NewGroup()
	raw.SetLr(g.LR)
	raw.SetWeight_decay(g.WeightDecay)
	raw.SetSet_lr(g.SetLR)
	return raw
}

// OptimizerOptions of AdamW. Zero: LR 1e-3, betas 0.9 and 0.999 (unless SetBetas), Eps 1e-8, no clipping. WeightDecay counts where there
// are no Groups.
type OptimizerOptions struct {
	LR, Beta1, Beta2, Eps, WeightDecay, MaxGradNorm float64
	SetBetas                                        bool
	Groups                                          []Group
}

// StepOptions of one step. LR replaces the optimizer's from this step on (0: unchanged, unless SetLR). Gradients are divided by LossScale;
// with one given, a gradient that is not finite makes all ranks skip the step. Stream, with CUDA: the address of the cudaStream_t that the
// step's work goes with; 0, as all other calls here have it: the device's default stream.
type StepOptions struct {
	LR, LossScale float64
	SetLR         bool
	Stream        uintptr
}

func (o StepOptions) raw() shim.StepOptions {
	raw := shim.NewStepOptions()
	raw.SetLr(o.LR)
	raw.SetLoss_scale(o.LossScale)
	raw.SetSet_lr(o.SetLR)
	raw.SetStream(int64(o.Stream))
	return raw
}

// StepReport is how a step went: the gradient's L2 norm before clipping, and how many steps were taken.
type StepReport struct {
	GradNorm, ClipFactor, LossScale float64
	Step                            int64
	Skipped, Clipped                bool
}

// Optimizer is AdamW over this rank's shard.
type Optimizer struct {
	raw shim.Optimizer
}

func (o OptimizerOptions) raw() shim.OptimizerOptions {
	raw := shim.NewOptimizerOptions()
	raw.SetLr(o.LR)
	raw.SetBeta1(o.Beta1)
	raw.SetBeta2(o.Beta2)
	raw.SetEps(o.Eps)
	raw.SetWeight_decay(o.WeightDecay)
	raw.SetMax_grad_norm(o.MaxGradNorm)
	raw.SetSet_betas(o.SetBetas)
	for _, group := range o.Groups {
		rawGroup := group.raw()
		raw.Add_group(rawGroup)
		shim.DeleteGroup(rawGroup)
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
	optimizer := &Optimizer{made}
	runtime.SetFinalizer(optimizer, func(optimizer *Optimizer) { shim.DeleteOptimizer(optimizer.raw) })
	return optimizer, nil
}

// SetGroup replaces a group's values from the next step on; alike on all ranks.
func (o *Optimizer) SetGroup(number int, group Group) error {
	raw := group.raw()
	defer shim.DeleteGroup(raw)
	return call(o, func(failure shim.Failure) { o.raw.Set_group(int64(number), raw, failure) })
}

// Step takes a step with the gradients that Sync reduced. It returns when the norm is known: new parameters are gathered meanwhile, and
// Read, Buffer.Wait and WaitAll wait for them. Collective.
func (o *Optimizer) Step(options StepOptions) (StepReport, error) {
	rawOptions := options.raw()
	defer shim.DeleteStepOptions(rawOptions)
	raw, err := ask(o, func(failure shim.Failure) shim.StepReport { return o.raw.Step(rawOptions, failure) })
	if err != nil {
		return StepReport{}, err
	}
	defer shim.DeleteStepReport(raw)
	return StepReport{raw.GetGrad_norm(), raw.GetClip_factor(), raw.GetLoss_scale(), raw.GetStep(), raw.GetSkipped(), raw.GetClipped()}, nil
}

// StartStep takes a step without a report and without waiting; the request ends when all parameters are whole. Collective.
func (o *Optimizer) StartStep(options StepOptions) (*Request, error) {
	raw := options.raw()
	defer shim.DeleteStepOptions(raw)
	return newRequest(ask(o, func(failure shim.Failure) shim.Request { return o.raw.Start_step(raw, failure) }))
}

// State lends the owned piece of a parameter's "master", "exp_avg" or "exp_avg_sq"; Range.ParamBegin says where it begins.
func (o *Optimizer) State(param int, name string) (*View, error) {
	return newView(ask(o, func(failure shim.Failure) shim.View { return o.raw.State(int64(param), name, failure) }))
}

// Steps is how many steps the parameter has taken part in: not counted are skipped ones, and those for which all ranks had skipped it.
func (o *Optimizer) Steps(param int) (int64, error) {
	return ask(o, func(failure shim.Failure) int64 { return o.raw.Steps(int64(param), failure) })
}

// Close drops the handle.
func (o *Optimizer) Close() error {
	o.raw.Close()
	runtime.KeepAlive(o)
	return nil
}
