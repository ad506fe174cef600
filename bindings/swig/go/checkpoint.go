// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"runtime"
	"strings"

	"megadp/internal/shim"
)

// SaveOptions says what a checkpoint has besides parameters and state: SharedData is any bytes, rank 0's count, RankData those of this
// rank; and how many of the newest checkpoints stay, 0: all.
type SaveOptions struct {
	SharedData, RankData []byte
	Keep                 int64
}

// LoadOptions: Optional has patterns (as of fnmatch) of names that only the checkpoint or only this program may have. With ParamsOnly
// moments are zero and no step was taken; with LoadHyper learning rates, groups and what else the optimizer was told are loaded too.
type LoadOptions struct {
	Optional              []string
	ParamsOnly, LoadHyper bool
}

// SaveCheckpoint saves parameters, optimizer state and steps in a directory of checkpoints, on a file system that all hosts share. The
// checkpoint is there as a whole or not at all. To be called between steps. Collective; it waits for files longer than the timeout.
func SaveCheckpoint(directory string, buffer *Buffer, optimizer *Optimizer, options SaveOptions) error {
	raw := options.raw()
	defer shim.DeleteCheckpointOptions(raw)
	defer runtime.KeepAlive(optimizer)
	return call(buffer, func(failure shim.Failure) { shim.CheckpointSave(directory, buffer.raw, optimizer.raw, raw, failure) })
}

// StartSaveCheckpoint does the same while training goes on: it returns when what this rank writes is copied, and the request ends when the
// checkpoint is there, or says why it is not. One is written at a time. Wait before the program ends. Collective.
func StartSaveCheckpoint(directory string, buffer *Buffer, optimizer *Optimizer, options SaveOptions) (*Request, error) {
	raw := options.raw()
	defer shim.DeleteCheckpointOptions(raw)
	defer runtime.KeepAlive(optimizer)
	return newRequest(ask(buffer, func(failure shim.Failure) shim.Request {
		return shim.CheckpointStart_save(directory, buffer.raw, optimizer.raw, raw, failure)
	}))
}

func (o SaveOptions) raw() shim.CheckpointOptions {
	raw := shim.NewCheckpointOptions()
	raw.SetShared_data(string(o.SharedData))
	raw.SetRank_data(string(o.RankData))
	raw.SetKeep(o.Keep)
	return raw
}

// LoadCheckpoint loads the directory's newest checkpoint, or the one that is the directory, which any number of ranks has saved, with any
// sharding and buckets. To be called between steps. Collective; it waits for files longer than the timeout. If it fails, nothing has
// changed; but if data turns out ErrCorrupt, parameters and state are not to be used until a checkpoint has been loaded.
func LoadCheckpoint(directory string, buffer *Buffer, optimizer *Optimizer, options LoadOptions) error {
	raw := options.raw()
	defer shim.DeleteCheckpointOptions(raw)
	defer runtime.KeepAlive(optimizer)
	return call(buffer, func(failure shim.Failure) { shim.CheckpointLoad(directory, buffer.raw, optimizer.raw, raw, failure) })
}

func (o LoadOptions) raw() shim.CheckpointOptions {
	raw := shim.NewCheckpointOptions()
	raw.SetOptional(strings.Join(o.Optional, "\n"))
	raw.SetParams_only(o.ParamsOnly)
	raw.SetLoad_hyper(o.LoadHyper)
	return raw
}

// CheckpointInfo is the manifest of the directory's newest checkpoint, and its path, as JSON.
func CheckpointInfo(directory string) (string, error) {
	return ask(nil, func(failure shim.Failure) string { return shim.CheckpointInfo(directory, failure) })
}

// CheckpointData is the RankData of a rank in the directory's newest checkpoint; of rank -1 it is the SharedData.
func CheckpointData(directory string, rank int) ([]byte, error) {
	data, err := ask(nil, func(failure shim.Failure) string { return shim.CheckpointData(directory, rank, failure) })
	return []byte(data), err
}

// VerifyCheckpoint reads all of the directory's newest checkpoint; it is ErrCorrupt if something is damaged. `megadp checkpoint verify`
// tells every damage.
func VerifyCheckpoint(directory string) error {
	return call(nil, func(failure shim.Failure) { shim.CheckpointVerify(directory, failure) })
}

// ExportCheckpoint writes the newest checkpoint's parameters and tensors, whole and under their names, as an ordinary safetensors file;
// with more than mostBytes of data (0: any) as several with an index. Nothing is written over. LoadCheckpoint takes it with ParamsOnly.
func ExportCheckpoint(directory, path string, mostBytes int64) error {
	return call(nil, func(failure shim.Failure) { shim.CheckpointExport_model(directory, path, mostBytes, failure) })
}
