// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"fmt"
	"reflect"
	"testing"

	"megadp"
)

// matrix is row-major.
type matrix struct {
	data    []float32
	columns int
}

func newMatrix(rows, columns int, at func(row, column int) float32) matrix {
	made := matrix{make([]float32, rows*columns), columns}
	for i := range made.data {
		made.data[i] = at(i/columns, i%columns)
	}
	return made
}

// small has multiples of 1/4: sums of products are exact however they are cut.
func small(rows, columns, salt int) matrix {
	return newMatrix(rows, columns, func(row, column int) float32 { return float32((7*row+3*column+5*salt)%9)/4 - 1 })
}

func (m matrix) rows() int                  { return len(m.data) / m.columns }
func (m matrix) at(row, column int) float32 { return m.data[row*m.columns+column] }

func (m matrix) turned() matrix {
	return newMatrix(m.columns, m.rows(), func(row, column int) float32 { return m.at(column, row) })
}

func (m matrix) times(other matrix) matrix {
	return newMatrix(m.rows(), other.columns, func(row, column int) float32 {
		var sum float32
		for k := 0; k < m.columns; k++ {
			sum += m.at(row, k) * other.at(k, column)
		}
		return sum
	})
}

// half is those rows of which each of two ranks has one.
func (m matrix) half(rank int) matrix {
	size := len(m.data) / 2
	return matrix{m.data[rank*size : (rank+1)*size], m.columns}
}

func (m matrix) columnsOf(rank int) matrix { return m.turned().half(rank).turned() }

func (m matrix) sum() matrix {
	return newMatrix(1, m.columns, func(_, column int) float32 {
		var sum float32
		for row := 0; row < m.rows(); row++ {
			sum += m.at(row, column)
		}
		return sum
	})
}

func (m matrix) empty() matrix {
	return newMatrix(m.rows(), m.columns, func(_, _ int) float32 { return -99 })
}

// different is an error that names the first of some pairs that are not equal.
func different(pairs ...matrix) error {
	for i := 0; i < len(pairs); i += 2 {
		if !reflect.DeepEqual(pairs[i], pairs[i+1]) {
			return fmt.Errorf("pair %d: found %v; expected %v", i/2, pairs[i], pairs[i+1])
		}
	}
	return nil
}

// tensorParallel, with two ranks: a column-parallel layer and a row-parallel one on what it gives, as the unsplit pair.
func tensorParallel() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	defer comm.Close()
	rank, err := comm.Rank()
	if err != nil {
		return err
	}
	for _, sequence := range []bool{false, true} {
		if err := tensorParallelPair(comm, rank, sequence); err != nil {
			return err
		}
	}
	if err := tensorParallelRegions(comm, rank); err != nil {
		return err
	}
	return tensorParallelVocabulary(comm, rank)
}

func tensorParallelPair(comm *megadp.Comm, rank int, sequence bool) error {
	w1, b1, w2, x, dy := small(8, 5, 1), small(1, 8, 2), small(4, 8, 3), small(6, 5, 4), small(6, 4, 5)
	h := x.times(w1.turned())
	h = newMatrix(6, 8, func(row, column int) float32 { return h.at(row, column) + b1.at(0, column) })
	y, dh := h.times(w2.turned()), dy.times(w2)
	own := func(whole matrix) matrix {
		if sequence {
			return whole.half(rank)
		}
		return whole
	}
	up, err := megadp.NewTpLinear(comm, megadp.TpLinearOptions{Split: megadp.Column, InFeatures: 5, OutFeatures: 8, Bias: true, Sequence: sequence})
	if err != nil {
		return err
	}
	defer up.Close()
	down, err := megadp.NewTpLinear(comm, megadp.TpLinearOptions{
		Split: megadp.Row, InFeatures: 8, OutFeatures: 4, Grad: megadp.OnAll, Sequence: sequence, Transposed: true})
	if err != nil {
		return err
	}
	defer down.Close()
	myW1, myB1, myW2 := w1.half(rank), b1.columnsOf(rank), w2.columnsOf(rank).turned()
	foundH, foundY := h.columnsOf(rank).empty(), own(y).empty()
	if err := megadp.Forward(up, own(x).data, myW1.data, myB1.data, foundH.data); err != nil {
		return err
	}
	saved, err := megadp.ForwardSaving(down, foundH.data, myW2.data, nil, foundY.data)
	if err != nil {
		return err
	}
	defer saved.Close()
	dw2, dH := myW2.empty(), foundH.empty()
	into := megadp.Gradients[float32]{Input: dH.data, Weight: dw2.data}
	if err := megadp.BackwardSaved(down, saved, myW2.data, own(dy).data, into); err != nil {
		return err
	}
	dx, dw1, db1 := own(x).empty(), newMatrix(4, 5, func(_, _ int) float32 { return 0 }), newMatrix(1, 4, func(_, _ int) float32 { return 0 })
	into = megadp.Gradients[float32]{Input: dx.data, Weight: dw1.data, Bias: db1.data, Add: true}
	if err := megadp.Backward(up, own(x).data, myW1.data, dH.data, into); err != nil {
		return err
	}
	if err := different(foundH, h.columnsOf(rank), foundY, own(y), dH, dh.columnsOf(rank), dx, own(dh.times(w1)),
		dw2, h.turned().times(dy).half(rank), dw1, dh.turned().times(x).half(rank), db1, dh.sum().columnsOf(rank)); err != nil {
		return err
	}
	fmt.Println("as unsplit")
	return nil
}

func tensorParallelRegions(comm *megadp.Comm, rank int) error {
	whole := small(3, 4, 1)
	counts := []uint64{1, 2}
	part := matrix{whole.data[:4], 4}
	if rank == 1 {
		part = matrix{whole.data[4:], 4}
	}
	gather := megadp.Region{Kind: megadp.RegionGather, Grad: megadp.Partial, Shape: []int64{int64(counts[rank]), 4}, Parts: counts}
	found, back := whole.empty(), part.empty()
	if err := first(megadp.RegionForward(comm, gather, part.data, found.data), megadp.RegionBackward(comm, gather, whole.data, back.data)); err != nil {
		return err
	}
	twice := newMatrix(part.rows(), 4, func(row, column int) float32 { return 2 * part.at(row, column) })
	exchange := megadp.Region{Kind: megadp.RegionExchange, Dim: 0, ToDim: 1, Shape: []int64{int64(counts[rank]), 4}, Parts: counts}
	columns := whole.columnsOf(rank).empty()
	if err := megadp.RegionForward(comm, exchange, part.data, columns.data); err != nil {
		return err
	}
	if err := different(found, whole, back, twice, columns, whole.columnsOf(rank)); err != nil {
		return err
	}
	fmt.Println("regions")
	return nil
}

func TestTensorParallel(t *testing.T) {
	lines, status := runRanks(t, 2, "tensor parallel", self(t))
	expectLines(t, lines, "as unsplit", "as unsplit", "as unsplit", "as unsplit", "regions", "regions", "vocabulary", "vocabulary")
	if status != 0 {
		t.Error(status)
	}
}

// A layer of a buffer's parameters, and what is refused.
func TestTpLinearInABuffer(t *testing.T) {
	comm := open(t)
	buffer, err := megadp.NewBuffer(comm, []megadp.Param{{Name: "w", Shape: []int64{3, 2}}, {Name: "b", Shape: []int64{3}}}, megadp.BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	options := megadp.TpLinearOptions{Split: megadp.Column, InFeatures: 2, OutFeatures: 3, Bias: true}
	layer, err := megadp.NewTpLinearIn(comm, buffer, 0, 1, options)
	if err != nil {
		t.Fatal(err)
	}
	y := make([]float32, 3)
	if err := first(megadp.Write(buffer, 0, []float32{1, 2, 3, 4, 5, 6}), megadp.Write(buffer, 1, []float32{1, 2, 3}),
		megadp.Forward(layer, []float32{1, 10}, nil, nil, y)); err != nil || !reflect.DeepEqual(y, []float32{22, 45, 68}) {
		t.Fatal(y, err)
	}
	if err := megadp.Backward(layer, []float32{1, 10}, nil, []float32{1, 2, 3}, megadp.Gradients[float32]{}); err != nil {
		t.Fatal(err)
	}
	grad, err := buffer.Grad(0)
	if err != nil {
		t.Fatal(err)
	}
	defer grad.Close()
	if values := grad.Float32s(); !reflect.DeepEqual(values, []float32{1, 10, 2, 20, 3, 30}) {
		t.Error(values)
	}
	expect(t, megadp.Forward(layer, []float32{1, 10, 5}, nil, nil, y), megadp.ErrInvalid, "input has shape")
	expect(t, megadp.Forward(layer, []float32{1, 10}, []float32{1}, nil, y), megadp.ErrInvalid, "weight is given")
	_, err = megadp.NewTpLinearIn(comm, buffer, 2, 1, options)
	expect(t, err, megadp.ErrInvalid, "2 parameters")
	layer.Close()
	expect(t, megadp.Forward(layer, []float32{1, 10}, nil, nil, y), megadp.ErrState, "closed")
}
