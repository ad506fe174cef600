# SPDX-License-Identifier: Apache-2.0
"""Programs of test_halo.py: one rank each."""
import gc
import sys
import types
import weakref

import numpy

import megadp

MODES = {"periodic": "wrap", "reflect": "reflect", "zero": "constant"}


def case_forward(comm):
    """Against numpy.pad of the whole."""
    count = 0
    for edges in MODES:
        for dtype in ("f32", "f64", "u8"):
            whole = (numpy.arange(9 * comm.size * 5) % 251).reshape(9 * comm.size, 5).astype({"f32": "f4", "f64": "f8", "u8": "u1"}[dtype])
            halo = megadp.Halo(comm, (comm.size, 1), (9, 5), low=(2, 1), high=(3, 0), edges=edges, dtype=dtype, fields=2)
            assert halo.whole == whole.shape and halo.begins == (9 * comm.rank, 0) and halo.coords == (comm.rank, 0)
            begin = halo.begins[0]
            wanted = numpy.pad(whole, ((2, 3), (1, 0)), MODES[edges])[begin:begin + halo.padded_shape[0]]
            padded = numpy.full(halo.padded_shape, 7, whole.dtype)
            turned = numpy.full(halo.padded_shape, 7, whole.dtype, order="F")
            for field in (padded, turned):
                field[halo.inside] = whole[begin:begin + 9]
            halo.exchange(padded, turned)
            assert (padded == wanted).all() and (turned == wanted).all(), (edges, dtype)
            count += 1
            halo.close()
    print(f"forward done, {count} halos")


def case_backward(comm):
    halo = megadp.Halo(comm, (comm.size,), (3,), low=1, high=1, edges="periodic")
    grad = numpy.full(5, 1 + comm.rank, "f4")
    halo.start(grad, backward=True)
    halo.finish()
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    assert grad.tolist() == [0, comm.rank + before + 2, 1 + comm.rank, comm.rank + behind + 2, 0], grad
    print("backward done")


def case_arrays(comm):
    """Arrays of the library's; large enough to be read where they lie."""
    halo = megadp.Halo(comm, (comm.size, 1), (40, 3000), low=(3, 0), high=(5, 0), edges="periodic", arrays=2)
    here, there = halo.array(0).numpy(), halo.array(1).numpy()
    assert not here.any() and here.shape == halo.padded_shape
    for turn in range(6):
        here[halo.inside] = 10 * turn + comm.rank
        halo.exchange(here)
        before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        assert (here[:3] == 10 * turn + before).all() and (here[-5:] == 10 * turn + behind).all()
        here, there = there, here
    try:
        halo.array(2)
    except megadp.MegaDPError as error:
        assert "index is 2; this halo has 2 arrays" in str(error), error
    else:
        raise AssertionError("a third array")
    halo.close()
    here[0, 0] = 1  # views keep it alive
    print("arrays done")


def case_staggered(comm):
    """Waves: pressure in cells, velocities on their faces. Each rank computes what it owns; the bits are those of one array."""
    cells = 6

    def steps(pressure, across, along, faces, exchange):
        for _ in range(20):
            across[faces] -= 0.3 * (pressure[1:] - pressure[:-1])[faces.start - 1:faces.stop - 1]
            along[:, 1:-1] -= 0.3 * (pressure[:, 1:] - pressure[:, :-1])
            exchange(pressure, across, along)
            pressure[1:-1, 1:-1] -= 0.3 * ((across[2:-1] - across[1:-2])[:, 1:-1] + (along[:, 2:-1] - along[:, 1:-2])[1:-1])
            exchange(pressure, across, along)

    def fields(count):
        return numpy.zeros((count + 2, 7)), numpy.zeros((count + 3, 7)), numpy.zeros((count + 2, 8))

    whole = fields(cells * comm.size)
    start = numpy.random.default_rng(1).standard_normal((cells * comm.size, 5))
    whole[0][1:-1, 1:-1] = start
    steps(*whole, slice(1, cells * comm.size + 2), lambda *_: None)
    halo = megadp.Halo(comm, (comm.size, 1), (cells, 5), low=1, high=1, dtype="f64", fields=3, staggered=((0, 0), (1, 0), (0, 1)))
    mine = fields(cells)
    assert halo.padded_shapes == tuple(field.shape for field in mine) and halo.padded_shape == mine[0].shape
    begin, is_last = halo.begins[0], comm.rank == comm.size - 1
    mine[0][halo.inside] = start[begin:begin + cells]
    halo.exchange(*mine)
    steps(*mine, slice(1, cells + 1 + is_last), halo.exchange)
    for field, expected in zip(mine, whole):
        assert (field == expected[begin:begin + len(field)]).all()
    print("staggered done")


def case_interrupted(comm):
    """A signal's handler raises behind start, before anybody knows that it has returned: the arrays are the library's until finish."""
    halo = megadp.Halo(comm, (comm.size,), (3,), low=1, high=1, edges="periodic")
    tree = halo._tree

    def run_and_raise(*arguments):
        tree.run(*arguments)
        raise KeyboardInterrupt

    field = numpy.full(5, 1 + comm.rank, "f4")
    gone = weakref.ref(field)
    halo._tree = types.SimpleNamespace(run=run_and_raise)
    try:
        halo.start(field)
        raise AssertionError
    except KeyboardInterrupt:
        pass
    halo._tree = tree
    del field
    try:
        halo.start(numpy.zeros(5, "f4"))
        raise AssertionError
    except megadp.MegaDPError as error:
        assert error.code == megadp.Status.STATE, error
    gc.collect()
    field = gone()
    assert field is not None
    halo.finish()
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    assert field.tolist() == [1 + before, *[1 + comm.rank] * 3, 1 + behind], field
    del field
    gc.collect()
    assert gone() is None
    print("interrupted done")


def case_dropped(comm):
    """Between start and finish, closed before or not: it is destroyed, also where it was started on an array of its own, which keeps its memory
    valid; the caller's arrays stay until then."""
    def drop(is_own, closed):
        def destroy(pointer):
            there.append(field() is not None)
            real(pointer)

        halo = megadp.Halo(comm, (comm.size,), (3,), low=1, high=1, edges="periodic", arrays=1)
        handle, there = halo._handle, []
        array = halo.array().numpy() if is_own else numpy.zeros(5, "f4")
        field, real, handle._destroy = weakref.ref(array), handle._destroy, destroy
        halo.start(array)
        del array
        assert field() is not None and handle.pointer is not None
        if closed:
            halo.close()
            assert handle.pointer is None and field() is None
        del halo
        gc.collect()
        assert handle.pointer is None and field() is None
        assert there == [not is_own], there

    for is_own in (False, True):
        for closed in (False, True):
            drop(is_own, closed)
    print("dropped done")


def case_refused(comm):
    def fails(words, call):
        try:
            call()
        except megadp.MegaDPError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)

    fails("shape has 1 dimensions and grid 2", lambda: megadp.Halo(comm, (1, 2), (3,)))
    fails("low has 3 values and grid 1", lambda: megadp.Halo(comm, (2,), (3,), low=(1, 2, 3)))
    fails("edges[0] is 'open'; it must be one of 'keep'", lambda: megadp.Halo(comm, (2,), (3,), edges="open"))
    fails("dtype is 'f31'", lambda: megadp.Halo(comm, (2,), (3,), dtype="f31"))
    fails("staggered is ((1,),); it must have 1 numbers, 0 or 1, for each of 2 fields",
          lambda: megadp.Halo(comm, (2,), (3,), fields=2, staggered=((1,),)))
    fails("dimension 0 of field 0, is 2", lambda: megadp.Halo(comm, (2,), (3,), staggered=((2,),)))
    fails("config.grid is [3]", lambda: megadp.Halo(comm, (3,), (3,)))
    halo = megadp.Halo(comm, (2,), (3,), low=1)
    fails("fields[0] has shape [3]; this rank's part with its halo has [4]", lambda: halo.start(numpy.zeros(3, "f4")))
    fails("fields[0].dtype is f64", lambda: halo.start(numpy.zeros(4)))
    frozen = numpy.zeros(4, "f4")
    frozen.flags.writeable = False
    fails("fields[0], a ndarray, is read-only", lambda: halo.start(frozen))
    fails("mdp_halo_start has not been called", halo.finish)
    part = megadp.conv_split((5, 4), comm.rank, kernel=3, stride=2, padding=1)
    assert part == ((1, 1, 0, 3, 0, 1, 1, 5), (1, 1, 3, 2, 1, 0, 1, 5))[comm.rank], part
    fails("the window of config reaches over 30 elements", lambda: megadp.conv_split((5, 4), 0, kernel=30))
    print("refused done")


if __name__ == "__main__":
    with megadp.Comm() as world:
        globals()[f"case_{sys.argv[1]}"](world)
