// SPDX-License-Identifier: Apache-2.0

package megadp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"megadp"
)

const patience = 240 * time.Second // until a program counts as hanging

var build = filepath.Join("..", "..", "..", "build")

// ranksCases are what this program does when it is started as a rank.
var ranksCases = map[string]func() error{"missing": missingGradient, "killed": killedPeer, "cancelled": cancelled,
	"reduced": reducedGradients, "checked": checkedGradients, "checkpointed": checkpointed, "in parts": inParts,
	"zero2": zero2Step, "rules": rulesTogether, "caller's own": callersOwn, "instances": instancesStep, "cut": cut, "held": heldBarrier, "tensor parallel": tensorParallel, "halo": ringHalo}

func TestMain(m *testing.M) {
	if run, ok := ranksCases[os.Getenv("MEGADP_TEST_CASE")]; ok {
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runRanks runs a program on so many ranks and returns its lines, sorted where several ranks print, and its exit status.
func runRanks(t *testing.T, ranks int, name, program string, arguments ...string) ([]string, int) {
	t.Helper()
	launcher := os.Getenv("MEGADP_PROGRAM")
	if launcher == "" {
		launcher = filepath.Join(build, "bin", "megadp")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	command := exec.CommandContext(ctx, launcher,
		append([]string{"run", "-n", strconv.Itoa(ranks), "--grace", "5", "--no-prefix", program}, arguments...)...)
	command.Env = append(os.Environ(), "MEGADP_TEST_CASE="+name, "MEGADP_TEST_FLAG="+filepath.Join(t.TempDir(), "flag"))
	var out, problems bytes.Buffer
	command.Stdout, command.Stderr = &out, &problems
	err := command.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s hangs\n%s\n%s", name, out.String(), problems.String())
	}
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("stderr: %s", problems.String())
		}
	})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if name != "" {
		sort.Strings(lines)
	}
	return lines, command.ProcessState.ExitCode()
}

func expectLines(t *testing.T, lines []string, expected ...string) {
	t.Helper()
	if got, want := strings.Join(lines, "|"), strings.Join(expected, "|"); got != want {
		t.Fatalf("printed %s; expected %s", got, want)
	}
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func numbers(t *testing.T, lines []string) []float64 {
	t.Helper()
	found := make([]float64, len(lines))
	for i, line := range lines {
		value, err := strconv.ParseFloat(line, 64)
		if err != nil {
			t.Fatal(err)
		}
		found[i] = value
	}
	return found
}

func apart(a, b []float64) float64 {
	largest := 0.0
	for i := range a {
		largest = math.Max(largest, math.Abs(a[i]-b[i]))
	}
	return largest
}

// The digits with 1 and 2 ranks: equal to 1e-6, and to the reference to 1e-4.
func TestTraining(t *testing.T) {
	digits := os.Getenv("MEGADP_DIGITS")
	if digits == "" {
		digits = filepath.Join(build, "bindings", "digits.csv")
	}
	if _, err := os.Stat(digits); err != nil {
		t.Skip("the digits are not there (scripts/setup_python writes them)")
	}
	program := filepath.Join(t.TempDir(), "digits")
	if out, err := exec.Command("go", "build", "-o", program, "./examples/digits").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "tests", "bindings", "mlp_losses.json"))
	if err != nil {
		t.Fatal(err)
	}
	var reference struct{ Losses []float64 }
	if err := json.Unmarshal(text, &reference); err != nil {
		t.Fatal(err)
	}
	var losses [3][]float64
	for _, ranks := range []int{1, 2} {
		lines, status := runRanks(t, ranks, "", program, digits)
		if status != 0 || len(lines) != len(reference.Losses) {
			t.Fatalf("%d ranks: status %d, %d losses", ranks, status, len(lines))
		}
		losses[ranks] = numbers(t, lines)
		if difference := apart(losses[ranks], reference.Losses); !(difference < 1e-4) {
			t.Errorf("%d ranks: %g from the reference", ranks, difference)
		}
	}
	between := apart(losses[1], losses[2])
	t.Logf("loss %.6f to %.6f with 1 rank, %.6f with 2; between 1 and 2 ranks at most %.1e, from the reference %.1e", losses[1][0],
		losses[1][99], losses[2][99], between, apart(losses[1], reference.Losses))
	if !(between < 1e-6) {
		t.Errorf("1 and 2 ranks differ by %g", between)
	}
}

func open(t *testing.T) *megadp.Comm {
	t.Helper()
	comm, err := megadp.NewComm(megadp.CommOptions{Timeout: 200 * time.Second, Sockets: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { comm.Close() })
	return comm
}

func TestCollectives(t *testing.T) {
	comm := open(t)
	values := []float64{1, 2, 3}
	all := make([]float64, 3)
	for _, err := range []error{megadp.AllReduce(comm, values, megadp.Sum), megadp.AllGather(comm, values, all),
		megadp.Broadcast(comm, []int64{7}, 0), megadp.Broadcast(comm, []uint8{}, 0), megadp.AllToAll(comm, values, all),
		megadp.ReduceScatter(comm, []float32{1, 2}, make([]float32, 2), megadp.Max), comm.Barrier(context.Background()),
		megadp.AllGatherV(comm, values, all, []uint64{3}), megadp.ReduceScatterV(comm, values, all, []uint64{3}, megadp.Sum),
		megadp.AllToAllV(comm, values, []uint64{3}, all, []uint64{3}), megadp.SendRecv(comm, values, 0, all, 0)} {
		if err != nil {
			t.Error(err)
		}
	}
	if all[2] != 3 {
		t.Error(all)
	}
	for _, err := range []error{megadp.Send(comm, values, 0), megadp.Recv(comm, values, 1), megadp.AllGatherV(comm, values, all, nil)} {
		if err == nil {
			t.Error("not refused")
		}
	}
	if part, err := comm.Split(-1, 0); part != nil || err != nil {
		t.Error(part, err)
	}
	if part, err := comm.Split(0, 0); err != nil {
		t.Error(err)
	} else if size, err := part.Size(); size != 1 || err != nil {
		t.Error(size, err)
	}
}
