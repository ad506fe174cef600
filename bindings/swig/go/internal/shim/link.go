// SPDX-License-Identifier: Apache-2.0

// Package shim is what SWIG makes of bindings/swig/megadp.i. Every method that can fail takes a Failure, which package megadp turns into an
// error: status and text are fetched in the native call itself, so it does not matter that goroutines change threads.
package shim

// #cgo CPPFLAGS: -I${SRCDIR}/../../.. -I${SRCDIR}/../../../../../include
// #cgo CXXFLAGS: -std=c++17
// #cgo LDFLAGS: -L${SRCDIR}/../../../../../build/lib -Wl,-rpath,${SRCDIR}/../../../../../build/lib -lmegadp
import "C"
