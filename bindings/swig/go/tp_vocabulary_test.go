// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"fmt"
	"math"

	"megadp"
)

// tensorParallelVocabulary, with two ranks: an embedding and a cross-entropy whose vocabulary is cut, as the whole ones.
func tensorParallelVocabulary(comm *megadp.Comm, rank int) error {
	for _, part := range []func(*megadp.Comm, int) error{vocabularyEmbedding, vocabularyLosses, vocabularySeeds} {
		if err := part(comm, rank); err != nil {
			return err
		}
	}
	fmt.Println("vocabulary")
	return nil
}

func vocabularyEmbedding(comm *megadp.Comm, rank int) error {
	table, dy, ids := small(6, 3, 1), small(4, 3, 2), []int64{5, 0, 2, 5}
	y := newMatrix(4, 3, func(row, column int) float32 { return table.at(int(ids[row]), column) })
	grad := newMatrix(6, 3, func(row, column int) float32 {
		sum := float32(1) // what was there
		for i, id := range ids {
			if int(id) == row {
				sum += dy.at(i, column)
			}
		}
		return sum
	})
	for _, sequence := range []bool{false, true} {
		embedding := megadp.Embedding{Rows: 6, Features: 3, Grad: megadp.OnAll, Sequence: sequence}
		myY, myDy := y, dy
		if sequence {
			myY, myDy = y.half(rank), dy.half(rank)
		}
		found, dw := myY.empty(), newMatrix(3, 3, func(_, _ int) float32 { return 1 })
		if err := first(megadp.EmbeddingForward(comm, embedding, ids, table.half(rank).data, found.data),
			megadp.EmbeddingBackward(comm, embedding, ids, myDy.data, dw.data, true), different(found, myY, dw, grad.half(rank))); err != nil {
			return err
		}
	}
	err := megadp.EmbeddingForward(comm, megadp.Embedding{Rows: 7, Features: 3, Grad: megadp.OnAll}, ids, table.data, y.data)
	return refused(err, "config.rows is 7")
}

// wholeLosses are losses of targets, and their gradients for 1, 2, ..; target -1 is ignored. The loss is smoothed.
func wholeLosses(logits matrix, targets []int64, smoothing, z float64) (losses []float64, grads [][]float64) {
	for row, target := range targets {
		var sum, loss float64
		grad := make([]float64, logits.columns)
		for v := range grad {
			sum += math.Exp(float64(logits.at(row, v)))
		}
		for v := range grad {
			if target < 0 {
				continue
			}
			q := smoothing / float64(logits.columns-1)
			if v == int(target) {
				q = 1 - smoothing
			}
			x := float64(logits.at(row, v))
			loss += q * (math.Log(sum) - x)
			grad[v] = float64(row+1) * (math.Exp(x)/sum*(1+2*z*math.Log(sum)) - q)
		}
		if target >= 0 {
			loss += z * math.Log(sum) * math.Log(sum)
		}
		losses, grads = append(losses, loss), append(grads, grad)
	}
	return losses, grads
}

func vocabularyLosses(comm *megadp.Comm, rank int) error {
	whole, targets := small(4, 5, 3), []int64{4, 0, -1, 2} // of 5 classes, and one column of padding
	padded := newMatrix(4, 6, func(row, column int) float32 {
		if column == 5 {
			return 99
		}
		return whole.at(row, column)
	})
	loss := megadp.CrossEntropy{Classes: 5, IgnoreIndex: -1, LabelSmoothing: 0.25, ZLoss: 0.5}
	mine := padded.columnsOf(rank)
	losses, saved, dx := make([]float32, 4), make([]float32, 8), mine.empty()
	if err := first(megadp.CrossEntropyForward(comm, loss, mine.data, targets, losses, saved),
		megadp.CrossEntropyBackward(comm, loss, mine.data, targets, saved, []float32{1, 2, 3, 4}, dx.data)); err != nil {
		return err
	}
	expected, grads := wholeLosses(whole, targets, 0.25, 0.5)
	for row := range targets {
		if math.Abs(float64(losses[row])-expected[row]) > 1e-5 {
			return fmt.Errorf("losses are %v; expected %v", losses, expected)
		}
		for column := 0; column < 3; column++ {
			grad := 0.0
			if at := 3*rank + column; at < 5 {
				grad = grads[row][at]
			}
			if math.Abs(float64(dx.at(row, column))-grad) > 1e-5 {
				return fmt.Errorf("the gradient of row %d is %v; of all columns it is %v", row, dx, grads[row])
			}
		}
	}
	// 0 can be ignored, too.
	loss = megadp.CrossEntropy{Classes: 5, SetIgnoreIndex: true}
	if err := megadp.CrossEntropyForward(comm, loss, mine.data, []int64{0, 1, 0, 1}, losses, nil); err != nil || losses[0] != 0 || losses[1] == 0 {
		return fmt.Errorf("target 0 is ignored: %v, %v", losses, err)
	}
	loss = megadp.CrossEntropy{Classes: 7}
	return refused(megadp.CrossEntropyForward(comm, loss, mine.data, targets, losses, nil), "config.classes is 7")
}

func vocabularySeeds(comm *megadp.Comm, rank int) error {
	grid, err := megadp.NewGrid(comm, megadp.GridOptions{TP: 2})
	if err != nil {
		return err
	}
	defer grid.Close()
	same, err := grid.Seed(1<<63, megadp.SameRandom)
	if err != nil || same != 1<<63 {
		return fmt.Errorf("the seed of all is %d, %v", same, err)
	}
	own, err := grid.Seed(5, megadp.TensorRandom)
	if err != nil || own != 5+2718+uint64(rank) {
		return fmt.Errorf("the seed of rank %d is %d, %v", rank, own, err)
	}
	_, err = grid.Seed(5, 0)
	return refused(err, "random is 0")
}

// refused is an error unless err is ErrInvalid with those words.
func refused(err error, words string) error {
	if wrong := mismatch(err, megadp.ErrInvalid, words); wrong != "" {
		return fmt.Errorf("%s", wrong)
	}
	return nil
}
