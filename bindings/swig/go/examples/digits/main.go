// SPDX-License-Identifier: Apache-2.0

// Digits trains a two-layer network on handwritten digits, on any number of ranks: tests/bindings/README.md describes the model.
//
// usage: megadp run -n 2 ./digits digits.csv      (prints the loss of each step)
package main

import (
	"encoding/csv"
	"fmt"
	"log"
	"math"
	"os"
	"strconv"

	"megadp"
)

const steps, batch, pixels, hidden, classes = 100, 64, 64, 32, 10

const (
	w1 = iota
	b1
	w2
	b2
)

type model struct {
	images [][pixels]float32
	digits []int
	params [4][]float32
}

func load(path string) (*model, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return nil, err
	}
	m := &model{images: make([][pixels]float32, len(lines)), digits: make([]int, len(lines))}
	for row, line := range lines {
		for i := range m.images[row] {
			value, err := strconv.Atoi(line[i])
			if err != nil {
				return nil, err
			}
			m.images[row][i] = float32(value) / 16
		}
		if m.digits[row], err = strconv.Atoi(line[pixels]); err != nil {
			return nil, err
		}
	}
	for i, size := range []int{pixels * hidden, hidden, hidden * classes, classes} {
		m.params[i] = make([]float32, size)
	}
	return m, nil
}

// initialize writes the same weights on every rank, through views of the library's memory.
func initialize(buffer *megadp.Buffer) error {
	state := uint32(1)
	for _, weight := range []struct{ param, rows int }{{w1, pixels}, {w2, hidden}} {
		view, err := buffer.Param(weight.param)
		if err != nil {
			return err
		}
		values := view.Float32s()
		for i := range values {
			state = state*1664525 + 1013904223
			values[i] = float32((float64(state)/4294967296 - 0.5) * 2 / math.Sqrt(float64(weight.rows)))
		}
		view.Close()
	}
	return buffer.Changed()
}

// forward returns a row's loss and leaves the loss's derivative by the logits, divided by count, in errors.
func (m *model) forward(row int, h, errors []float32, count int) float64 {
	for j := range h {
		sum := m.params[b1][j]
		for i, pixel := range m.images[row] {
			sum += pixel * m.params[w1][i*hidden+j]
		}
		h[j] = float32(math.Max(float64(sum), 0))
	}
	total := 0.0
	for c := range errors {
		logit := m.params[b2][c]
		for j, value := range h {
			logit += value * m.params[w2][j*classes+c]
		}
		errors[c] = logit
		total += math.Exp(float64(logit))
	}
	loss := math.Log(total) - float64(errors[m.digits[row]])
	for c := range errors {
		target := 0.0
		if c == m.digits[row] {
			target = 1
		}
		errors[c] = float32((math.Exp(float64(errors[c]))/total - target) / float64(count))
	}
	return loss
}

// trainStep goes forward and backward over some rows. Gradients leave as soon as they are known, the last layer's first.
func (m *model) trainStep(buffer *megadp.Buffer, rows []int) (float64, error) {
	for param := range m.params {
		if err := megadp.Read(buffer, param, m.params[param]); err != nil { // waits until the step before has brought it
			return 0, err
		}
	}
	var grads [4][]float32
	for i := range grads {
		grads[i] = make([]float32, len(m.params[i]))
	}
	h, errors := make([][]float32, len(rows)), make([][]float32, len(rows))
	loss := 0.0
	for k, row := range rows {
		h[k], errors[k] = make([]float32, hidden), make([]float32, classes)
		loss += m.forward(row, h[k], errors[k], len(rows))
		for c, e := range errors[k] {
			grads[b2][c] += e
			for j, value := range h[k] {
				grads[w2][j*classes+c] += value * e
			}
		}
	}
	for _, param := range []int{b2, w2} {
		if err := megadp.Put(buffer, param, grads[param]); err != nil {
			return 0, err
		}
	}
	for k, row := range rows {
		for j, value := range h[k] {
			if value <= 0 {
				continue
			}
			e := float32(0)
			for c := range errors[k] {
				e += errors[k][c] * m.params[w2][j*classes+c]
			}
			grads[b1][j] += e
			for i, pixel := range m.images[row] {
				grads[w1][i*hidden+j] += pixel * e
			}
		}
	}
	for _, param := range []int{b1, w1} {
		if err := megadp.Put(buffer, param, grads[param]); err != nil {
			return 0, err
		}
	}
	return loss / float64(len(rows)), nil
}

func train(m *model, comm *megadp.Comm) error {
	buffer, err := megadp.NewBuffer(comm, []megadp.Param{
		{Name: "w1", Shape: []int64{pixels, hidden}}, {Name: "b1", Shape: []int64{hidden}},
		{Name: "w2", Shape: []int64{hidden, classes}}, {Name: "b2", Shape: []int64{classes}},
	}, megadp.BufferOptions{})
	if err != nil {
		return err
	}
	defer buffer.Close()
	if err := initialize(buffer); err != nil {
		return err
	}
	optimizer, err := megadp.NewOptimizer(buffer, megadp.OptimizerOptions{LR: 1e-2, WeightDecay: 0.01})
	if err != nil {
		return err
	}
	defer optimizer.Close()
	rank, err := comm.Rank()
	if err != nil {
		return err
	}
	ranks, err := comm.Size()
	if err != nil {
		return err
	}
	for t := 0; t < steps; t++ {
		var rows []int
		for k := batch * rank / ranks; k < batch*(rank+1)/ranks; k++ {
			rows = append(rows, (batch*t+k)%len(m.digits))
		}
		loss, err := m.trainStep(buffer, rows)
		if err != nil {
			return err
		}
		if _, err := optimizer.Step(megadp.StepOptions{}); err != nil { // ends backward, updates the parameters and gathers them
			return err
		}
		mean := []float64{loss}
		if err := megadp.AllReduce(comm, mean, megadp.Avg); err != nil {
			return err
		}
		if rank == 0 {
			if _, err := fmt.Printf("%.9f\n", mean[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: digits digits.csv")
	}
	m, err := load(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer comm.Close()
	if err := train(m, comm); err != nil {
		comm.Abort() // the other ranks need not wait for this one
		log.Fatal(err)
	}
}
