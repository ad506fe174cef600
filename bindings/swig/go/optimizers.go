// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"runtime"

	"megadp/internal/shim"
)

// togetherOf optimizers for one call; the caller deletes it, and keeps them alive until then.
func togetherOf(optimizers []*Optimizer) shim.Optimizers {
	list := shim.NewOptimizers()
	for _, optimizer := range optimizers {
		list.Add(optimizer.raw)
	}
	return list
}

// StepMany is one step of several optimizers of one buffer, each with parameter groups of its own (OptimizerOptions.SomeGroups): one sync,
// norm, skip decision and report, which are the first one's, as is the scaler. They clip alike, and have their learning rates from
// SetParamGroup: StepOptions.LR is refused, as is a trained parameter whose group none or two of them have. Otherwise as Optimizer.Step.
// Collective, with the same list.
func StepMany(optimizers []*Optimizer, options StepOptions) (StepReport, error) {
	list, rawOptions := togetherOf(optimizers), options.raw()
	defer shim.DeleteOptimizers(list)
	defer shim.DeleteStepOptions(rawOptions)
	raw, err := ask(optimizers, func(failure shim.Failure) shim.StepReport { return list.Step_many(rawOptions, failure) })
	if err != nil {
		return StepReport{}, err
	}
	return reportOf(raw), nil
}

// StartStepMany takes such a step without a report, as Optimizer.StartStep. Collective.
func StartStepMany(optimizers []*Optimizer, options StepOptions) (*Request, error) {
	list, raw := togetherOf(optimizers), options.raw()
	defer shim.DeleteOptimizers(list)
	defer shim.DeleteStepOptions(raw)
	return newRequest(ask(optimizers, func(failure shim.Failure) shim.Request { return list.Start_step_many(raw, failure) }))
}

// SaveCheckpointOf saves as SaveCheckpoint, with all optimizers of a buffer, which have different parameter groups. Collective.
func SaveCheckpointOf(directory string, buffer *Buffer, optimizers []*Optimizer, options SaveOptions) error {
	list, raw := togetherOf(optimizers), options.raw()
	defer shim.DeleteOptimizers(list)
	defer shim.DeleteCheckpointOptions(raw)
	defer runtime.KeepAlive(optimizers)
	return call(buffer, func(failure shim.Failure) { shim.CheckpointSave_many(directory, buffer.raw, list, raw, failure) })
}

// StartSaveCheckpointOf saves them as StartSaveCheckpoint, while training goes on. Collective.
func StartSaveCheckpointOf(directory string, buffer *Buffer, optimizers []*Optimizer, options SaveOptions) (*Request, error) {
	list, raw := togetherOf(optimizers), options.raw()
	defer shim.DeleteOptimizers(list)
	defer shim.DeleteCheckpointOptions(raw)
	defer runtime.KeepAlive(optimizers)
	return newRequest(ask(buffer, func(failure shim.Failure) shim.Request {
		return shim.CheckpointStart_save_many(directory, buffer.raw, list, raw, failure)
	}))
}

// LoadCheckpointOf loads as LoadCheckpoint, what SaveCheckpointOf has saved. Collective.
func LoadCheckpointOf(directory string, buffer *Buffer, optimizers []*Optimizer, options LoadOptions) error {
	list, raw := togetherOf(optimizers), options.raw()
	defer shim.DeleteOptimizers(list)
	defer shim.DeleteCheckpointOptions(raw)
	defer runtime.KeepAlive(optimizers)
	return call(buffer, func(failure shim.Failure) { shim.CheckpointLoad_many(directory, buffer.raw, list, raw, failure) })
}

// Scaler is a loss scale that follows overflows: as Megatron-LM's dynamic scaler, and with Hysteresis 1 torch.amp.GradScaler. Zero: Scale
// 65536, GrowthFactor 2, BackoffFactor 0.5, MinScale 1, GrowthInterval 2000, Hysteresis 1. CleanSteps (since the last overflow or growth)
// and Overflows (since the last growth) are how far it has come. A Constant one stays.
type Scaler struct {
	Scale, GrowthFactor, BackoffFactor, MinScale      float64
	GrowthInterval, Hysteresis, CleanSteps, Overflows int64
	Constant                                          bool
}

func (s Scaler) raw() shim.Scaler {
	raw := shim.NewScaler()
	raw.SetScale(s.Scale)
	raw.SetGrowth_factor(s.GrowthFactor)
	raw.SetBackoff_factor(s.BackoffFactor)
	raw.SetMin_scale(s.MinScale)
	raw.SetGrowth_interval(s.GrowthInterval)
	raw.SetHysteresis(s.Hysteresis)
	raw.SetClean_steps(s.CleanSteps)
	raw.SetOverflows(s.Overflows)
	raw.SetConstant(s.Constant)
	return raw
}

// SetScaler gives the optimizer a loss scaler: steps divide gradients by its scale, skip those that are not finite, and take no LossScale.
// It waits for the last step. Collective, with equal values.
func (o *Optimizer) SetScaler(scaler Scaler) error {
	raw := scaler.raw()
	defer shim.DeleteScaler(raw)
	return call(o, func(failure shim.Failure) { o.raw.Set_scaler(raw, failure) })
}

// Averaged calls evaluate while the averages of the optimizer's parameters are in their place, rounded, on all ranks; then what was there before
// is again, bit for bit. Meanwhile gradients, steps, checkpoints and writes of parameters are ErrState. The error is evaluate's, or what went
// wrong before or after; a panic of evaluate goes on when they are back. Collective at both ends.
func (o *Optimizer) Averaged(evaluate func() error) (err error) {
	if err = o.SwapAverage(); err != nil {
		return err
	}
	defer func() { // also where evaluate panics; if it fails then, the next training call says that the averages are still there
		if back := o.SwapAverage(); err == nil {
			err = back
		}
	}()
	return evaluate()
}

// SwapAverage puts the averages in the place of the parameters, or what was there before back. Collective.
func (o *Optimizer) SwapAverage() error {
	return call(o, func(failure shim.Failure) { o.raw.Swap_average(failure) })
}

// RemoveScaler takes it away again. Collective.
func (o *Optimizer) RemoveScaler() error {
	return call(o, func(failure shim.Failure) { o.raw.Remove_scaler(failure) })
}

// Scaler is the scaler as the last step has left it, which is waited for; ErrState if there is none.
func (o *Optimizer) Scaler() (Scaler, error) {
	raw, err := ask(o, func(failure shim.Failure) shim.Scaler { return o.raw.Scaler(failure) })
	if err != nil {
		return Scaler{}, err
	}
	defer shim.DeleteScaler(raw)
	return Scaler{raw.GetScale(), raw.GetGrowth_factor(), raw.GetBackoff_factor(), raw.GetMin_scale(), raw.GetGrowth_interval(),
		raw.GetHysteresis(), raw.GetClean_steps(), raw.GetOverflows(), raw.GetConstant()}, nil
}

// Scale lends what the loss is to be multiplied by, where steps keep it: one float32, not to be written; ErrState if there is no scaler.
func (o *Optimizer) Scale() (*View, error) {
	return newView(ask(o, func(failure shim.Failure) shim.View { return o.raw.Scale(failure) }))
}
