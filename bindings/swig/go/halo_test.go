// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"fmt"
	"reflect"
	"testing"

	"megadp"
)

// ringHalo, with two ranks: a ring of three elements each, with a halo of one before and two behind.
func ringHalo() error {
	comm, err := megadp.NewComm(megadp.CommOptions{})
	if err != nil {
		return err
	}
	defer comm.Close()
	rank, err := comm.Rank()
	if err != nil {
		return err
	}
	dimension := megadp.HaloDimension{Ranks: 2, Size: 3, Low: 1, High: 2, Edge: megadp.EdgePeriodic}
	halo, err := megadp.NewHalo(comm, megadp.HaloOptions{Dimensions: []megadp.HaloDimension{dimension}, Arrays: 2})
	if err != nil {
		return err
	}
	defer halo.Close()
	place, begin, whole, err := halo.Place(0)
	if err != nil || place != int64(rank) || begin != int64(3*rank) || whole != 6 {
		return fmt.Errorf("place %d, %d, %d: %w", place, begin, whole, err)
	}
	expected := [][]float32{{6, 1, 2, 3, 4, 5}, {3, 4, 5, 6, 1, 2}}[rank]
	field := []float32{0, expected[1], expected[2], expected[3], 0, 0}
	if err := megadp.Exchange(halo, field); err != nil || !reflect.DeepEqual(field, expected) {
		return fmt.Errorf("forward: %v: %w", field, err)
	}
	// Gradients of rank 0 are 1, 2, ...; of rank 1 they are 10, 20, ...
	gradient := [][]float32{{1, 2, 3, 4, 5, 6}, {10, 20, 30, 40, 50, 60}}[rank]
	sums := [][]float32{{0, 52, 63, 14, 0, 0}, {0, 25, 36, 41, 0, 0}}[rank]
	if err := megadp.ExchangeBackward(halo, gradient); err != nil || !reflect.DeepEqual(gradient, sums) {
		return fmt.Errorf("backward: %v: %w", gradient, err)
	}
	view, err := halo.Array(1)
	if err != nil {
		return err
	}
	defer view.Close()
	copy(view.Float32s()[1:4], expected[1:4])
	if err := first(halo.Start(1, false), halo.Finish()); err != nil || !reflect.DeepEqual(view.Float32s(), expected) {
		return fmt.Errorf("an array of the library's: %v: %w", view.Float32s(), err)
	}
	fmt.Println("as the ring")
	return nil
}

func TestHalo(t *testing.T) {
	lines, status := runRanks(t, 2, "halo", self(t))
	expectLines(t, lines, "as the ring", "as the ring")
	if status != 0 {
		t.Error(status)
	}
}

// What is refused, and how a convolution is cut.
func TestHaloRefused(t *testing.T) {
	comm := open(t)
	dimension := megadp.HaloDimension{Ranks: 1, Size: 3, Low: 1, Edge: megadp.EdgeZero}
	options := megadp.HaloOptions{Dimensions: []megadp.HaloDimension{dimension}, DType: megadp.F64, Fields: 2, Arrays: 1}
	halo, err := megadp.NewHalo(comm, options)
	if err != nil {
		t.Fatal(err)
	}
	fields := []float64{9, 1, 2, 3, 9, 4, 5, 6}
	if err := megadp.Exchange(halo, fields); err != nil || !reflect.DeepEqual(fields, []float64{0, 1, 2, 3, 0, 4, 5, 6}) {
		t.Error(fields, err)
	}
	expect(t, megadp.Exchange(halo, make([]float32, 8)), megadp.ErrInvalid, "DType")
	expect(t, megadp.Exchange(halo, make([]float64, 6)), megadp.ErrInvalid, "fields[0] has shape [3]")
	expect(t, megadp.Exchange(halo, make([]byte, 63)), megadp.ErrInvalid, "cannot share evenly")
	expect(t, halo.Start(0, false), megadp.ErrInvalid, "index is 1") // two fields, one array
	expect(t, halo.Finish(), megadp.ErrState, "mdp_halo_start has not been called")
	_, _, _, err = halo.Place(1)
	expect(t, err, megadp.ErrInvalid, "dimension must be 0 to 0, not 1")
	halo.Close()
	expect(t, halo.Finish(), megadp.ErrState, "closed")
	options.Staggered = [][]int{nil, {0}}
	if halo, err = megadp.NewHalo(comm, options); err != nil {
		t.Fatal(err)
	}
	fields = []float64{9, 1, 2, 3, 9, 4, 5, 6, 7}
	if err := megadp.Exchange(halo, fields); err != nil || !reflect.DeepEqual(fields, []float64{0, 1, 2, 3, 0, 4, 5, 6, 7}) {
		t.Error(fields, err)
	}
	halo.Close()
	options.Staggered = [][]int{{1}}
	_, err = megadp.NewHalo(comm, options)
	expect(t, err, megadp.ErrInvalid, "stagger(0, 1): fields are 0 to 1, dimensions 0 to 0")
	options.Staggered = nil
	options.Dimensions[0].Ranks = 2
	_, err = megadp.NewHalo(comm, options)
	expect(t, err, megadp.ErrInvalid, "config.grid is [2]")

	conv := megadp.Conv{Kernel: 3, Stride: 2, PaddingLow: 1, Parts: []int64{4, 3}}
	part, err := conv.Split(0)
	if wanted := (megadp.ConvPart{Low: 1, OutputSize: 2, InsideBegin: 1, InsideSize: 1, WholeOutput: 3}); err != nil || part != wanted {
		t.Error(part, err)
	}
	_, err = conv.Split(2)
	expect(t, err, megadp.ErrInvalid, "part is 2")
}
