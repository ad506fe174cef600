// SPDX-License-Identifier: Apache-2.0

package megadp

import "megadp/internal/shim"

// Step is a step under way whose update is the caller's: update every Piece that Next gives, then Finish. One that is never finished nor
// closed is finished as failed by its optimizer's next collective call; the other ranks wait until then. For the communicator's goroutine.
type Step struct {
	*owned[shim.Step]
}

func newStep(raw shim.Step, err error) (*Step, error) {
	if err != nil {
		return nil, err
	}
	return &Step{own(raw, shim.DeleteStep)}, nil
}

// BeginStep begins a step of RuleCaller: it syncs where Buffer.Sync was not called, and returns when the norm is known. The gradients are the
// Step's until its end. Collective.
func (o *Optimizer) BeginStep(options StepOptions) (*Step, error) {
	raw := options.raw()
	defer shim.DeleteStepOptions(raw)
	return newStep(ask(o, func(failure shim.Failure) shim.Step { return o.raw.Begin_step(raw, failure) }))
}

// BeginStepMany begins a step of several optimizers, as StepMany; pieces are those of optimizers with RuleCaller. Collective, with the same
// list.
func BeginStepMany(optimizers []*Optimizer, options StepOptions) (*Step, error) {
	list, raw := togetherOf(optimizers), options.raw()
	defer shim.DeleteOptimizers(list)
	defer shim.DeleteStepOptions(raw)
	return newStep(ask(optimizers, func(failure shim.Failure) shim.Step { return list.Begin_step_many(raw, failure) }))
}

// Piece is what this rank owns of a parameter, for an update of it: elements ParamBegin to ParamBegin+Count of the flattened parameter. Master
// and State (in the order of OptimizerOptions.State) are the library's memory, to be updated in place, as is ParamStates, the bytes that
// OptimizerOptions.ParamStates gives the parameter; Grad is divided and clipped, for reading. The slices are not to be touched after the Step's next call. Step counts the steps that the parameter takes part in, from 1 on;
// Optimizer is the number in BeginStepMany's list; the other values are those of the parameter's group.
type Piece struct {
	Optimizer, Param                             int
	ParamBegin, Count, Step                      int64
	LR, Beta1, Beta2, Eps, WeightDecay, Momentum float64
	Master, Grad                                 []float32
	State                                        [][]float32
	ParamStates                                  [][]byte
}

// Next is the next piece; nil when there is none any more, at once where the step is skipped. Local.
func (s *Step) Next() (*Piece, error) {
	raw, err := ask(s, func(failure shim.Failure) shim.UpdatePiece { return s.raw.Next(failure) })
	if err != nil || raw.Swigcptr() == 0 {
		return nil, err
	}
	defer shim.DeleteUpdatePiece(raw)
	piece := &Piece{
		Optimizer: int(raw.GetOptimizer()), Param: int(raw.GetParam()), ParamBegin: raw.GetParam_begin(), Count: raw.GetCount(), Step: raw.GetStep(),
		LR: raw.GetLr(), Beta1: raw.GetBeta1(), Beta2: raw.GetBeta2(), Eps: raw.GetEps(), WeightDecay: raw.GetWeight_decay(),
		Momentum: raw.GetMomentum(), State: make([][]float32, raw.States()), ParamStates: make([][]byte, raw.Param_states()),
	}
	if piece.Master, err = sliceOf(raw.Master, (*View).Float32s); err != nil {
		return nil, err
	}
	if piece.Grad, err = sliceOf(raw.Grad, (*View).Float32s); err != nil {
		return nil, err
	}
	for i := range piece.State {
		index := int64(i)
		lend := func(failure shim.Failure) shim.View { return raw.State(index, failure) }
		if piece.State[i], err = sliceOf(lend, (*View).Float32s); err != nil {
			return nil, err
		}
	}
	for i := range piece.ParamStates {
		index := int64(i)
		lend := func(failure shim.Failure) shim.View { return raw.Param_state(index, failure) }
		if piece.ParamStates[i], err = sliceOf(lend, (*View).Bytes); err != nil {
			return nil, err
		}
	}
	return piece, nil
}

// sliceOf the memory that a piece lends, which the Step keeps.
func sliceOf[T float32 | byte](lend func(shim.Failure) shim.View, slice func(*View) []T) ([]T, error) {
	view, err := newView(ask(nil, lend))
	if err != nil {
		return nil, err
	}
	defer view.Close()
	return slice(view), nil
}

// Finish waits until all ranks have updated their pieces, then has parameters rounded and gathered, and returns when all are whole. If
// a rank has failed it is ErrAborted on all: masters and state may have changed, and steps are ErrState until a checkpoint is loaded or
// SetSteps is called. ErrState if pieces are left, which is such a failure. Collective.
func (s *Step) Finish() (StepReport, error) {
	raw, err := ask(s, func(failure shim.Failure) shim.StepReport { return s.raw.Finish(failure) })
	if err != nil {
		return StepReport{}, err
	}
	return reportOf(raw), nil
}

// Fail says that this rank cannot update a piece: Finish is ErrAborted on the others. Collective.
func (s *Step) Fail() error { return call(s, s.raw.Fail) }

// Close is Fail where the step is not over; otherwise it does nothing. To be deferred.
func (s *Step) Close() error { return call(s, s.raw.Close) }
