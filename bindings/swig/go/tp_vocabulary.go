// SPDX-License-Identifier: Apache-2.0

package megadp

import "megadp/internal/shim"

// Embedding is a table of rows, cut by rows over the ranks of a communicator, the same on all ranks. Grad must be said where the output is the same on
// all of them (not with Sequence).
type Embedding struct {
	Rows            int64 // of the whole table
	Features        int64 // of a row
	DType           DType // of weight and output and its gradient: F32, or BF16 or F16 as bytes
	Grad            TpGrad
	Sequence        bool // the output is cut along its first dimension
	CheckReplicated bool // compare over the ranks what should be the same on all; for debugging
}

func (e Embedding) raw() shim.TpEmbeddingOptions {
	raw := shim.NewTpEmbeddingOptions()
	raw.SetRows(e.Rows)
	raw.SetFeatures(e.Features)
	raw.SetDtype(shim.MegadpDType(e.DType))
	raw.SetGrad(shim.MegadpTpGrad(e.Grad))
	raw.SetSequence(e.Sequence)
	raw.SetCheck_replicated(e.CheckReplicated)
	return raw
}

// EmbeddingForward writes the rows ids, counted from 0, of the table, of which weight, rows / ranks x features, is this rank's part. Collective;
// blocking.
func EmbeddingForward[T Feature](comm *Comm, embedding Embedding, ids []int64, weight, output []T) error {
	raw := embedding.raw()
	defer shim.DeleteTpEmbeddingOptions(raw)
	rows, rowsBytes := optional(ids)
	table, tableBytes := optional(weight)
	to, toBytes := optional(output)
	return call(comm, func(failure shim.Failure) {
		shim.TensorParallelEmbedding_forward(comm.raw, raw, rows, rowsBytes, table, tableBytes, to, toBytes, failure)
	})
}

// EmbeddingBackward writes the gradient of weight, zeros where no id came, from that of the output; add: adds it to what is there. Collective;
// blocking.
func EmbeddingBackward[T Feature](comm *Comm, embedding Embedding, ids []int64, gradOutput []T, gradWeight []float32, add bool) error {
	raw := embedding.raw()
	defer shim.DeleteTpEmbeddingOptions(raw)
	rows, rowsBytes := optional(ids)
	from, fromBytes := optional(gradOutput)
	table, tableBytes := optional(gradWeight)
	return call(comm, func(failure shim.Failure) {
		shim.TensorParallelEmbedding_backward(comm.raw, raw, rows, rowsBytes, from, fromBytes, table, tableBytes, add, failure)
	})
}

// CrossEntropy is that of logits whose classes are cut over the ranks of a communicator, the same number on each; the same on all ranks.
type CrossEntropy struct {
	Classes         int64   // 0: as many as all ranks have columns; those beyond are padding and do not count
	IgnoreIndex     int64   // a target without loss and gradient; 0: none, unless SetIgnoreIndex
	LabelSmoothing  float64 // the target has probability 1 - LabelSmoothing, each other class LabelSmoothing / (Classes - 1)
	ZLoss           float64 // adds ZLoss * log(sum of exp(logits))^2
	DType           DType   // of logits and their gradient: F32, or BF16 or F16 as bytes
	SetIgnoreIndex  bool
	CheckReplicated bool // compare over the ranks what should be the same on all; for debugging
}

func (c CrossEntropy) raw() shim.TpCrossEntropyOptions {
	raw := shim.NewTpCrossEntropyOptions()
	raw.SetClasses(c.Classes)
	if c.IgnoreIndex != 0 || c.SetIgnoreIndex {
		raw.SetIgnore_index(c.IgnoreIndex)
	}
	raw.SetLabel_smoothing(c.LabelSmoothing)
	raw.SetZ_loss(c.ZLoss)
	raw.SetDtype(shim.MegadpDType(c.DType))
	raw.SetCheck_replicated(c.CheckReplicated)
	return raw
}

// CrossEntropyForward writes the loss of each of targets, classes of the whole counted from 0, of this rank's columns of logits: the same on all
// ranks. saved has two numbers a target for CrossEntropyBackward; nil: not wanted. Collective; blocking.
func CrossEntropyForward[T Feature](comm *Comm, loss CrossEntropy, logits []T, targets []int64, losses, saved []float32) error {
	raw := loss.raw()
	defer shim.DeleteTpCrossEntropyOptions(raw)
	x, xBytes := optional(logits)
	classes, classesBytes := optional(targets)
	to, toBytes := optional(losses)
	kept, keptBytes := optional(saved)
	return call(comm, func(failure shim.Failure) {
		shim.TensorParallelCross_entropy_forward(comm.raw, raw, x, xBytes, classes, classesBytes, to, toBytes, kept, keptBytes, failure)
	})
}

// CrossEntropyBackward writes the gradient of logits, from that of the losses. gradLogits may be logits. Local.
func CrossEntropyBackward[T Feature](comm *Comm, loss CrossEntropy, logits []T, targets []int64, saved, gradLosses []float32, gradLogits []T) error {
	raw := loss.raw()
	defer shim.DeleteTpCrossEntropyOptions(raw)
	x, xBytes := optional(logits)
	classes, classesBytes := optional(targets)
	kept, keptBytes := optional(saved)
	from, fromBytes := optional(gradLosses)
	to, toBytes := optional(gradLogits)
	return call(comm, func(failure shim.Failure) {
		shim.TensorParallelCross_entropy_backward(comm.raw, raw, x, xBytes, classes, classesBytes, kept, keptBytes, from, fromBytes, to, toBytes, failure)
	})
}
