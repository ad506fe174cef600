// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"megadp"
)

// checkpointJob is a buffer of w and b, whose w has this value, and its optimizer after so many steps.
func checkpointJob(comm *megadp.Comm, value float32, steps int64) (*megadp.Buffer, *megadp.Optimizer, error) {
	params := []megadp.Param{{Name: "w", Shape: []int64{3}}, {Name: "b", Shape: []int64{2}}}
	buffer, err := megadp.NewBuffer(comm, params, megadp.BufferOptions{})
	if err != nil {
		return nil, nil, err
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{LR: 0.5})
	if err != nil {
		return nil, nil, err
	}
	if err := megadp.Write(buffer, 0, []float32{value, value, value}); err != nil {
		return nil, nil, err
	}
	return buffer, optimizer, optimizer.SetSteps(steps, nil)
}

// checkpointed saves a job and loads it into others.
func checkpointed() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	rank, err := comm.Rank()
	if err != nil {
		return err
	}
	directory := os.Getenv("MEGADP_CHECKPOINTS")
	buffer, optimizer, err := checkpointJob(comm, 7, 5)
	if err != nil {
		return err
	}
	data := []byte{0, byte(rank), 255}
	saved := megadp.SaveOptions{SharedData: []byte("all"), RankData: data, Keep: 2}
	for i := 0; i < 2; i++ {
		if err := megadp.SaveCheckpoint(directory, buffer, optimizer, saved); err != nil {
			return err
		}
	}
	writing, err := megadp.StartSaveCheckpoint(directory, buffer, optimizer, saved)
	if err != nil {
		return err
	}
	if err := megadp.Write(buffer, 0, []float32{9, 9, 9}); err != nil { // which is not in it
		return err
	}
	if err := writing.Wait(context.Background()); err != nil {
		return err
	}
	for _, options := range []megadp.LoadOptions{{}, {ParamsOnly: true, Optional: []string{"x", "y*"}}} {
		other, adamw, err := checkpointJob(comm, 1, 1)
		if err != nil {
			return err
		}
		if err := megadp.LoadCheckpoint(directory, other, adamw, options); err != nil {
			return err
		}
		values := make([]float32, 3)
		if err := megadp.Read(other, 0, values); err != nil {
			return err
		}
		steps, err := adamw.Steps(1)
		if err != nil {
			return err
		}
		fmt.Println("loaded", values, steps)
	}
	info, err := megadp.CheckpointInfo(directory)
	if err != nil {
		return err
	}
	shared, err := megadp.CheckpointData(directory, -1)
	if err != nil {
		return err
	}
	last, err := megadp.CheckpointData(directory, 1)
	fmt.Println("data", strings.Contains(info, "checkpoint-000003"), string(shared), last, err)
	if err := megadp.VerifyCheckpoint(directory); err != nil {
		return err
	}
	model := fmt.Sprintf("%s/model-%d.safetensors", directory, rank)
	if err := megadp.ExportCheckpoint(directory, model, 0); err != nil {
		return err
	}
	defer os.Remove(model)
	for _, wrong := range []string{
		mismatch(megadp.ExportCheckpoint(directory, model, 0), megadp.ErrInvalid, "is there already"),
		mismatch(megadp.ExportCheckpoint(directory, model, -1), megadp.ErrInvalid, "most_bytes"),
		mismatch(second(megadp.CheckpointData(directory, 2)), megadp.ErrInvalid, "rank is 2"),
		mismatch(second(megadp.CheckpointInfo(directory+"/absent")), megadp.ErrSystem, "absent"),
		mismatch(megadp.LoadCheckpoint("a\x00b", buffer, optimizer, megadp.LoadOptions{}), megadp.ErrInvalid, "NUL"),
		mismatch(megadp.SaveCheckpoint(directory, buffer, optimizer, megadp.SaveOptions{Keep: -1}), megadp.ErrInvalid, "keep"),
		mismatch(second(megadp.StartSaveCheckpoint("a\x00b", buffer, optimizer, saved)), megadp.ErrInvalid, "NUL"),
	} {
		if wrong != "" {
			return errors.New(wrong)
		}
	}
	if err := optimizer.Close(); err != nil {
		return err
	}
	if wrong := mismatch(megadp.SaveCheckpoint(directory, buffer, optimizer, megadp.SaveOptions{}), megadp.ErrState, "closed"); wrong != "" {
		return errors.New(wrong)
	}
	return comm.Barrier(context.Background()) // a process that ends earlier is one that died
}

func TestCheckpoints(t *testing.T) {
	directory := t.TempDir()
	t.Setenv("MEGADP_CHECKPOINTS", directory)
	lines, status := runRanks(t, 2, "checkpointed", self(t))
	expectLines(t, lines, "data true all [0 1 255] <nil>", "data true all [0 1 255] <nil>", "loaded [7 7 7] 0", "loaded [7 7 7] 0",
		"loaded [7 7 7] 5", "loaded [7 7 7] 5")
	entries, err := os.ReadDir(directory)
	if status != 0 || err != nil || len(entries) < 2 || len(entries) > 3 {
		t.Error(status, lines, err, entries)
	}
}
