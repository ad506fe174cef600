// SPDX-License-Identifier: Apache-2.0

package megadp

import (
	"reflect"
	"testing"
	"time"

	"megadp/internal/shim"
)

// full is a value of options of which no field is zero.
func full[T any]() T {
	var options T
	fields := reflect.ValueOf(&options).Elem()
	for i := 0; i < fields.NumField(); i++ {
		switch field := fields.Field(i); field.Kind() {
		case reflect.Bool:
			field.SetBool(true)
		case reflect.String:
			field.SetString("some")
		case reflect.Float64:
			field.SetFloat(0.5)
		case reflect.Uintptr, reflect.Uint32:
			field.SetUint(8)
		case reflect.Slice:
		default:
			field.SetInt(int64(time.Second))
		}
	}
	return options
}

// expectFull fails for the options of the shim, which its getters tell, that are zero: what this package leaves out.
func expectFull(t *testing.T, raw any) {
	t.Helper()
	kind := reflect.TypeOf(raw)
	asked := 0
	for i := 0; i < kind.NumMethod(); i++ {
		if name := kind.Method(i).Name; len(name) > 3 && name[:3] == "Get" {
			asked++
			if reflect.ValueOf(raw).Method(i).Call(nil)[0].IsZero() {
				t.Errorf("%s of %s: nothing here gives it", name[3:], kind)
			}
		}
	}
	if asked < 2 {
		t.Errorf("%s has %d options", kind, asked)
	}
}

func TestOptions(t *testing.T) {
	comm := full[CommOptions]()
	expectFull(t, comm.raw())
	expectFull(t, full[BufferOptions]().raw())
	expectFull(t, full[OptimizerOptions]().raw())
	expectFull(t, full[StepOptions]().raw())
	expectFull(t, full[ParamGroup]().raw())
	expectFull(t, full[Scaler]().raw())
	expectFull(t, full[GridOptions]().raw())
	expectFull(t, full[TpLinearOptions]().raw())
	expectFull(t, full[Region]().raw())
	expectFull(t, full[Embedding]().raw())
	expectFull(t, full[CrossEntropy]().raw())
	if none := (CommOptions{}).raw(); none.GetSockets() || none.GetBackend() != shim.Backend_AUTO {
		t.Error("zero is the default")
	}
}
