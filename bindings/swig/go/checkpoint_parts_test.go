// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	"megadp"
)

// must is for what only fails if the test does: inParts returns the error.
func must[T any](value T, err error) T {
	done(err)
	return value
}

func done(errs ...error) {
	for _, err := range errs {
		if err != nil {
			panic(err)
		}
	}
}

// partsJob is what a program has in one checkpoint: two buffers, one of them with two optimizers, and arrays of its own.
type partsJob struct {
	encoder, decoder *megadp.Buffer
	adamw, sgd       *megadp.Optimizer
	mean, batches    *megadp.View
	parts            *megadp.CheckpointParts
}

func newPartsJob(comm *megadp.Comm, zero2 bool) *partsJob {
	options := megadp.BufferOptions{Zero2: zero2}
	j := &partsJob{parts: megadp.NewCheckpointParts()}
	j.encoder = must(megadp.NewBuffer(comm, []megadp.Param{{Name: "weight", Shape: []int64{3}}, {Name: "bias", Shape: []int64{2}, ParamGroup: 1}}, options))
	j.decoder = must(megadp.NewBuffer(comm, []megadp.Param{{Name: "head", Shape: []int64{2}}}, options))
	j.adamw = must(megadp.NewOptimizer(j.encoder, megadp.OptimizerOptions{SomeGroups: true}))
	j.sgd = must(megadp.NewOptimizer(j.encoder, megadp.OptimizerOptions{Rule: megadp.RuleSGDMomentum, SomeGroups: true, FirstParamGroup: 1}))
	j.parts.Add(j.encoder, j.adamw, j.sgd)
	j.parts.Add(j.decoder)
	j.mean = must(j.parts.AddTensor(megadp.Param{Name: "norm.mean", Shape: []int64{2, 2}}))
	j.batches = must(j.parts.AddTensor(megadp.Param{Name: "norm.batches", DType: megadp.I64}))
	return j
}

// set makes everything a number that comes from value.
func (j *partsJob) set(value int64) {
	v := float32(value)
	j.mean.Float32s()[3] = v + 3
	binary.LittleEndian.PutUint64(j.batches.Bytes(), uint64(value)+1<<40)
	done(megadp.Write(j.encoder, 0, []float32{v, v, v}), megadp.Write(j.encoder, 1, []float32{v + 1, v + 1}),
		megadp.Write(j.decoder, 0, []float32{v + 2, v + 2}), j.adamw.SetSteps(value, nil), j.sgd.SetSteps(value+1, nil))
}

func (j *partsJob) told() string {
	weight, head := make([]float32, 3), make([]float32, 2)
	done(megadp.Read(j.encoder, 0, weight), megadp.Read(j.decoder, 0, head))
	return fmt.Sprint(weight, head, must(j.adamw.Steps(0)), must(j.sgd.Steps(1)), j.mean.Float32s(),
		binary.LittleEndian.Uint64(j.batches.Bytes())-1<<40, len(j.batches.Bytes()))
}

// inParts saves one and loads it into another one.
func inParts() (err error) {
	defer func() {
		if found := recover(); found != nil {
			err = found.(error)
		}
	}()
	comm := must(megadp.NewComm(megadp.CommOptions{}))
	directory := os.Getenv("MEGADP_CHECKPOINTS")
	saved, loaded := newPartsJob(comm, false), newPartsJob(comm, true)
	saved.set(7)
	done(saved.parts.Save(directory, megadp.SaveOptions{}))
	saved.set(20)
	writing := must(saved.parts.StartSave(directory, megadp.SaveOptions{}))
	saved.set(30) // which is not in it
	done(writing.Wait(context.Background()), loaded.parts.Load(directory, megadp.LoadOptions{}))
	newest := loaded.told()
	done(loaded.parts.Load(directory+"/checkpoint-000001", megadp.LoadOptions{}))
	fmt.Println(newest, "and", loaded.told())

	twice := megadp.NewCheckpointParts()
	twice.Add(saved.decoder)
	must(twice.AddTensor(megadp.Param{Name: "head", Shape: []int64{2}}))
	_, negative := saved.parts.AddTensor(megadp.Param{Name: "x", Shape: []int64{-2}})
	_, mistyped := saved.parts.AddTensor(megadp.Param{Name: "x", DType: megadp.Same})
	wrong := []string{
		mismatch(megadp.LoadCheckpoint(directory, saved.encoder, saved.adamw, megadp.LoadOptions{}), megadp.ErrInvalid, "'"),
		mismatch(megadp.NewCheckpointParts().Save(directory, megadp.SaveOptions{}), megadp.ErrInvalid, "part_count"),
		mismatch(twice.Save(directory, megadp.SaveOptions{}), megadp.ErrInvalid, "two arrays are called 'head'"),
		mismatch(negative, megadp.ErrInvalid, "-2"), mismatch(mistyped, megadp.ErrInvalid, "dtype of tensor 'x'"),
		mismatch(second(saved.parts.StartSave("a\x00b", megadp.SaveOptions{})), megadp.ErrInvalid, "NUL"),
	}
	done(loaded.decoder.Close())
	wrong = append(wrong, mismatch(loaded.parts.Load(directory, megadp.LoadOptions{}), megadp.ErrState, "this Buffer is closed"))
	for _, sentence := range wrong {
		if sentence != "" {
			return errors.New(sentence)
		}
	}
	return comm.Barrier(context.Background()) // a process that ends earlier is one that died
}

func TestCheckpointParts(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		t.Setenv("MEGADP_CHECKPOINTS", t.TempDir())
		lines, status := runRanks(t, ranks, "in parts", self(t))
		expected := []string{"[20 20 20] [22 22] 20 21 [0 0 0 23] 20 8 and [7 7 7] [9 9] 7 8 [0 0 0 10] 7 8",
			"[20 20 20] [22 22] 20 21 [0 0 0 23] 20 8 and [7 7 7] [9 9] 7 8 [0 0 0 10] 7 8"}
		expectLines(t, lines, expected[:ranks]...)
		if status != 0 {
			t.Error(status, lines)
		}
	}
}
