# SPDX-License-Identifier: Apache-2.0
"""What test_caller.py runs on some ranks: updates of the caller's, as functions and in loops. Each rank prints "CASE: ok".

usage: caller_cases.py CASE [FOLDER]
"""
import copy
import gc
import os
import signal
import sys
import unittest.mock
import weakref

import numpy as np

import megadp
from megadp import _pieces
from rule_emulation import step as emulated

PARAMS = {"a": ("f32", 291, 0), "b": ("bf16", 41, 1), "h": ("bf16", 430, 0), "f": ("f16", 77, 1), "c": ("f32", 1030, 1)}
GROUPS = [dict(betas=(0.8, 0.99)), dict(lr=0.05, weight_decay=0.5)]
VALUES = dict(lr=0.02, weight_decay=0.1, max_grad_norm=0.9)
STATE = ["exp_avg", "exp_avg_sq"]
STEPS = 50
ABORTED, STATE_CODE = megadp.Status.ABORTED, megadp.Status.STATE
comm = megadp.Comm(timeout=60)
last = comm.size - 1


def buffer_of(sharding="zero_1"):
    buffer = megadp.Buffer(comm, [megadp.Param(name, (size,), dtype, param_group=group) for name, (dtype, size, group) in PARAMS.items()],
                           sharding=sharding, bucket_elements=200)
    random = np.random.default_rng(0)
    for name, (_, size, _) in PARAMS.items():
        buffer.write(name, random.standard_normal(size).astype(np.float32))
    return buffer


def optimizer_of(buffer, rule="caller", groups=(0, 1), **options):
    some = {} if len(groups) == 2 else dict(first_param_group=groups[0])
    state = dict(state=STATE) if rule == "caller" else {}
    return megadp.Optimizer(buffer, rule=rule, param_groups=[megadp.ParamGroup(**GROUPS[group]) for group in groups], **VALUES, **state, **some,
                            **options)


def put(buffer, step):
    """In step 5 an element of the last rank's is not finite; in step 8 no rank has a gradient of h."""
    random = np.random.default_rng((step, comm.rank))
    for name, (_, size, _) in reversed(PARAMS.items()):
        grad = 0.05 * random.standard_normal(size).astype(np.float32) * (1 + step % 3)
        if step == 5 and name == "b" and comm.rank == last:
            grad[3] = np.nan
        if step == 8 and name == "h":
            buffer.skip(name)
        else:
            buffer.put(name, grad)


def adamw(piece):
    state = [piece.state["exp_avg"], piece.state["exp_avg_sq"]]
    master, found = emulated("adamw", piece.master, state, piece.grad, piece.step, piece.lr, piece.weight_decay, piece.betas, piece.eps)
    piece.master[:] = master
    for array, values in zip(state, found):
        array[:] = values


def by_function(buffer, optimizer, step, **options):
    put(buffer, step)
    return optimizer.step(loss_scale=1, **options)


def by_pieces(buffer, optimizer, step):
    put(buffer, step)
    with optimizer.pieces(loss_scale=1) as pieces:
        for piece in pieces:
            adamw(piece)
    return pieces.report


def values_of(buffer):
    buffer.wait()
    found = {name: np.empty(size, np.float32) for name, (_, size, _) in PARAMS.items()}
    for name, values in found.items():
        buffer.read(name, values)
    return found


def same(a, b, what):
    for name in PARAMS:
        assert np.array_equal(a[name].view(np.uint32), b[name].view(np.uint32)), f"{name} differs {what}"


def same_state(mine, theirs, what):
    for name in PARAMS:
        assert mine.steps(name) == theirs.steps(name), (name, what)
        for array in ("master", *STATE):
            assert np.array_equal(mine.state(name, array).numpy(), theirs.state(name, array).numpy()), f"{array} of {name} differs {what}"


def raised_by(call):
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def refused(code, text, call, *arguments, **options):
    error = raised_by(lambda: call(*arguments, **options))
    assert isinstance(error, megadp.MegaDPError) and error.code == code and text in str(error), f"{error!r}; expected {text!r}"
    return error


def case_beside():
    """Parameters and state bit for bit those of the library's AdamW, and reports too: clipped, skipped, with masters, in all shardings."""
    for sharding in ("zero_0", "zero_1", "zero_2"):
        own = buffer_of(sharding)
        library, reports, ends = optimizer_of(own, "adamw"), [], []
        for step in range(STEPS):
            reports.append(by_function(own, library, step))
            ends.append(values_of(own))
        assert [report.skipped for report in reports].count(True) == 1 and 10 < sum(report.clipped for report in reports) < STEPS
        for way in (by_function, by_pieces):
            buffer = buffer_of(sharding)
            optimizer = optimizer_of(buffer)
            if way is by_function:
                optimizer.set_update(adamw)
            for step in range(STEPS):
                report = way(buffer, optimizer, step)
                assert repr(report) == repr(reports[step]), (report, reports[step])  # a norm that is NaN is not equal to itself
                same(values_of(buffer), ends[step], f"in step {step}, {way.__name__}, {sharding}")
            same_state(optimizer, library, f"at the end, {way.__name__}, {sharding}")
    buffer, own = buffer_of(), buffer_of()
    optimizer, library = optimizer_of(buffer), optimizer_of(own, "adamw")
    optimizer.set_update(adamw)
    for step in range(10):  # while parameters are gathered, and without a report
        by_function(buffer, optimizer, step, wait=False, report=step % 2 == 0)
        by_function(own, library, step)
    same(values_of(buffer), values_of(own), "with wait=False")


def case_together():
    """One step with a rule of the library's, in both orders, by a function and in a loop."""
    own = buffer_of()
    library = optimizer_of(own, "adamw")
    for rules in (("caller", "adamw"), ("adamw", "caller")):
        for way in ("function", "pieces"):
            buffer = buffer_of()
            both = [optimizer_of(buffer, rule, (group,)) for group, rule in enumerate(rules)]
            mine, number, seen = both[rules.index("caller")], rules.index("caller"), []
            if way == "function":
                mine.set_update(lambda piece: (seen.append((piece.optimizer, piece.param)), adamw(piece)))
            for step in range(12):
                put(buffer, step)
                if way == "function":
                    megadp.step_many(both, 1)
                    continue
                with megadp.pieces_many(both, 1) as pieces:
                    for piece in pieces:
                        seen.append((piece.optimizer, piece.param))
                        adamw(piece)
            if len(own_ends) == 0:
                for step in range(12):
                    by_function(own, library, step)
                own_ends.append(values_of(own))
            same(values_of(buffer), own_ends[0], f"with {rules}, {way}")
            assert {optimizer for optimizer, _ in seen} <= {number}, seen
            assert all(list(PARAMS.values())[param][2] == number for _, param in seen), seen


own_ends = []


class Mine(Exception):
    pass


def case_fails():
    """On the last rank in step 7: all ranks are told, none has gathered, steps are refused until a checkpoint is loaded."""
    folder = sys.argv[2]
    for way in (by_function, by_pieces):
        buffer = buffer_of()
        optimizer = optimizer_of(buffer)
        mine, calls = Mine("no further"), []

        def update(piece):
            calls.append(piece.param)
            adamw(piece)
            if failing and comm.rank == last:
                raise mine

        def step_once(number):
            put(buffer, number)
            if way is by_function:
                return optimizer.step(loss_scale=1)
            with optimizer.pieces(loss_scale=1) as pieces:
                for piece in pieces:
                    update(piece)
            return pieces.report

        failing = False
        optimizer.set_update(update)
        for number in range(7):
            step_once(number)
        megadp.save_checkpoint(folder, buffer, optimizer)
        before, failing = values_of(buffer), True
        calls.clear()
        error = raised_by(lambda: step_once(7))
        if comm.rank == last:
            assert error is mine and len(calls) == 1, (error, calls)
            if way is by_function:
                assert isinstance(error.__cause__, megadp.MegaDPError) and error.__cause__.code == ABORTED, error.__cause__
        else:
            assert isinstance(error, megadp.MegaDPError) and (error.code, error.rank) == (ABORTED, last), error
            assert f"rank {last}" in error.text, error
            assert way is by_pieces or (error.param in range(len(PARAMS)) and "parameter" in error.text), error
        after = values_of(buffer)
        for name in ("b", "h", "f"):  # float32 parameters are their own masters
            assert np.array_equal(before[name], after[name]), f"{name} was gathered"
        failing = False
        put(buffer, 7)
        refused(STATE_CODE, "are not whole", optimizer.step)
        assert comm.error is None
        megadp.load_checkpoint(folder, buffer, optimizer)
        optimizer.step(loss_scale=1)  # with the gradients that the refused one has left
        for number in range(8, 12):
            step_once(number)
        own = buffer_of()
        library = optimizer_of(own, "adamw")
        for number in range(12):
            by_function(own, library, number)
        same(values_of(buffer), values_of(own), f"after the load, {way.__name__}")


def case_within():
    """What may not be called from an update function is refused there, and works again afterwards."""
    buffer = buffer_of()
    optimizer, array, seen = optimizer_of(buffer), np.ones(4, np.float32), []
    within = "only requests, errors and ranks"

    def update(piece):
        refused(STATE_CODE, within, comm.all_reduce, array)
        refused(STATE_CODE, within, comm.barrier)
        refused(STATE_CODE, within, buffer.param, 0)
        refused(STATE_CODE, within, buffer.put, "a", np.zeros(291, np.float32))
        refused(STATE_CODE, within, optimizer.state, piece.param, "master")
        refused(STATE_CODE, within, optimizer.step)
        refused(STATE_CODE, within, optimizer.set_update, adamw)
        refused(STATE_CODE, within, optimizer.pieces().__enter__)
        assert comm.error is None and comm.world_rank() == comm.rank
        seen.append(piece.param)

    optimizer.set_update(update)
    by_function(buffer, optimizer, 0)
    owned = {piece.param for piece in buffer.owned()}
    assert set(seen) == owned, (seen, owned)
    comm.all_reduce(array)
    assert array[0] == comm.size
    with optimizer.pieces() if not put(buffer, 1) else None as pieces:  # in a block collectives may be called
        refused(STATE_CODE, "a step is under way", buffer.put, "a", np.zeros(291, np.float32))
        refused(STATE_CODE, "a step is under way", optimizer.step)
        refused(STATE_CODE, "a step is under way", optimizer.set_update, adamw)
        comm.barrier()
        for piece in pieces:
            adamw(piece)


def case_views():
    """A piece is of no use after its update, its views are."""
    buffer = buffer_of()
    optimizer, pieces, views = optimizer_of(buffer), [], []

    def update(piece):
        pieces.append(piece)
        views.append((piece.master, piece.state["exp_avg"], piece.grad))
        assert all(view.dtype == np.float32 and view.shape == (piece.count,) for view in views[-1])
        assert not piece.grad.flags.writeable and piece.tensor("grad").readonly and piece.tensor("exp_avg").shape == (piece.count,)
        assert piece.state["exp_avg"] is piece.state["exp_avg"] and piece.betas == (piece.beta1, piece.beta2)
        for call in (lambda: setattr(piece, "master", piece.master + 1), lambda: setattr(piece, "lr", 1.0),
                     lambda: piece.state.__setitem__("exp_avg", 0), lambda: piece.state.__setitem__("other", 0)):
            assert isinstance(raised_by(call), (AttributeError, TypeError))
        refused(megadp.Status.INVALID, "name is 'other'; a piece has master, grad, exp_avg", piece.tensor, "other")
        piece.master -= 0.5 * piece.master
        piece.state["exp_avg"] += piece.param + 1

    optimizer.set_update(update)
    by_function(buffer, optimizer, 0)
    assert len(pieces) == len({piece.param for piece in buffer.owned()})
    for piece in pieces:
        for use in (lambda: piece.master, lambda: piece.grad, lambda: piece.state, lambda: piece.tensor("master")):
            refused(STATE_CODE, "used after its update", use)
        assert optimizer.state(piece.param, "exp_avg").numpy()[0] == piece.param + 1
    with optimizer.pieces() if not put(buffer, 1) else None as block:
        one = None
        for piece in block:
            assert one is None or isinstance(raised_by(lambda: one.master), megadp.MegaDPError)
            one = piece
        optimizer.close()  # the step goes on
    assert block.report.step == 2
    refused(STATE_CODE, "a `with` block", lambda: next(iter(block)))
    buffer.close()
    del buffer, optimizer, block
    gc.collect()
    for piece, (master, mean, grad) in zip(pieces, views):  # memory that is there as long as they are
        master += 1
        assert mean[0] == piece.param + 1 and grad.shape == master.shape


def case_words():
    buffer = buffer_of()
    invalid = megadp.Status.INVALID
    refused(invalid, "state is 'exp_avg'; it must be a list of names", megadp.Optimizer, buffer, rule="caller", state="exp_avg")
    refused(invalid, "state[1] is 'a\\nb'", megadp.Optimizer, buffer, rule="caller", state=["a", "a\nb"])
    refused(invalid, "'master'", megadp.Optimizer, buffer, rule="caller", state=["master"])
    refused(invalid, "names 5 arrays", megadp.Optimizer, buffer, rule="caller", state=list("abcde"))
    refused(invalid, "Lion has its own", megadp.Optimizer, buffer, rule="lion", state=["a"])
    library = optimizer_of(buffer, "adamw")
    refused(STATE_CODE, "the optimizer's rule is AdamW", library.set_update, adamw)
    optimizer = optimizer_of(buffer)
    refused(invalid, "update is 3; it must be a function", optimizer.set_update, 3)
    put(buffer, 0)
    refused(STATE_CODE, "no update function", optimizer.step)
    optimizer.set_update(adamw)
    assert optimizer.step().step == 1  # with the gradients that the refused one has left
    put(buffer, 1)
    error = raised_by(lambda: optimizer.pieces().__enter__().__exit__(None, None, None))
    assert isinstance(error, megadp.MegaDPError) and error.code == STATE_CODE and "was not asked for" in str(error), error
    refused(invalid, "optimizers is empty", megadp.pieces_many, [])


WHOLE = {"a": (12, 20), "b": (31,), "c": (5, 6, 7), "d": (3, 40)}


def whole_step(sharding, folder=None):
    """Along the gradient by its length, with a mean of rows, in float64, and a count. Returns the parameters and what was kept of each."""
    buffer = megadp.Buffer(comm, [megadp.Param(name, shape, cost=1 + number) for number, (name, shape) in enumerate(WHOLE.items())],
                           sharding=sharding, bucket_elements=200)
    kept = {"rows": {name: (shape[:1], np.float64) for name, shape in WHOLE.items() if len(shape) == 2}, "seen": {"c": ((), "i64"), 3: ((2,), "u8")}}
    optimizer, calls = megadp.Optimizer(buffer, rule="caller", state=["m"], param_states=kept, lr=0.1), []

    def update(piece):
        name, shape = list(WHOLE.items())[piece.param]
        master, grad, m = (piece.shaped(each) for each in ("master", "grad", "m"))
        assert piece.shape == master.shape == grad.shape == m.shape == shape and np.shares_memory(master, piece.master)
        assert set(piece.param_states) == {each for each, of in kept.items() if name in of or piece.param in of}
        if len(shape) == 2:
            rows = piece.param_states["rows"]
            assert rows.dtype == np.float64 and rows.shape == shape[:1] and piece.tensor("rows").dtype == "float64"
            rows += grad.mean(1)
        if name == "c":
            piece.param_states["seen"][...] += 1
        m += grad
        master -= piece.lr * m / np.linalg.norm(grad)
        calls.append(piece.param)

    optimizer.set_update(update)
    for step in range(4):
        if step == 2 and folder is not None:
            megadp.save_checkpoint(folder, buffer, optimizer)
            for name in WHOLE:
                buffer.write(name, np.ones(WHOLE[name], np.float32))
            megadp.load_checkpoint(folder, buffer, optimizer)
        for name, shape in reversed(WHOLE.items()):
            buffer.put(name, np.random.default_rng(step).integers(-8, 9, shape).astype(np.float32))  # exact sums
        optimizer.step()
    owned = {piece.param for piece in buffer.owned()}
    assert len(calls) == 4 * len(owned) and set(calls) == owned, (calls, owned)
    for number, name in enumerate(WHOLE):
        for array, of in kept.items():
            view = optimizer.state(name, array) if name in of or number in of else None
            assert view is None or (view.size > 0) == (number in owned), view
        if name in kept["rows"] and number in owned:
            expected = sum(np.random.default_rng(step).integers(-8, 9, WHOLE[name]).astype(np.float32).mean(1) for step in range(4))
            assert np.allclose(optimizer.state(name, "rows").numpy(), expected, atol=1e-6)
    if 2 in owned:
        assert optimizer.state("c", "seen").numpy()[()] == 4
    return [buffer.read(name) for name in WHOLE]


def case_checked():
    """Pieces come once more in halves; what an element-wise update makes of them is the same, and nothing is changed by that."""
    buffer, plain = buffer_of(), buffer_of()
    optimizer, other = optimizer_of(buffer, check_update=True), optimizer_of(plain)
    for each in (optimizer, other):
        each.set_update(adamw)
    for step in range(1, 4):
        by_pieces(buffer, optimizer, step) if step == 2 else by_function(buffer, optimizer, step)
        by_function(plain, other, step)
    same(values_of(buffer), values_of(plain), "after checked steps")

    def by_norm(piece):
        piece.master -= np.linalg.norm(piece.grad)

    optimizer.set_update(by_norm)
    refused(megadp.Status.INVALID, "its update is not element-wise", by_function, buffer, optimizer, 4)


def case_whole():
    """Each parameter is all here or not at all, with the shape that it has, and what is kept of it besides; the bits are those of zero_0."""
    expected = whole_step("zero_0")
    for found in (whole_step("whole"), whole_step("whole", sys.argv[2])):
        for name, mine, theirs in zip(WHOLE, found, expected):
            assert np.array_equal(mine, theirs), name


def case_whole_words():
    buffer = megadp.Buffer(comm, [megadp.Param("cut", (40, 30)), megadp.Param("all", (4, 5), sharding="whole")])
    make = lambda kept: megadp.Optimizer(buffer, rule="caller", param_states=kept)
    for text, kept in (("param_states is ['rows']", ["rows"]), ("param_states is {'rows': 3}", {"rows": 3}),
                       ("param_states['rows']['all'] is 7; it must be a shape and a dtype", {"rows": {"all": 7}}),
                       ("has dtype 'f8'; it must be float32", {"rows": {"all": ((3,), "f8")}}),
                       ("param is 'none'; no parameter", {"rows": {"none": ((3,), "f32")}}),
                       ("cut over the ranks; register it with MDP_SHARDING_WHOLE", {"rows": {"cut": ((3,), "f32")}})):
        refused(megadp.Status.INVALID, text, make, kept)
    optimizer = make({"rows": {"all": ((4,), "f32")}})

    def update(piece):
        if piece.param == 0:
            assert piece.shape is None and piece.param_states == {}
            refused(megadp.Status.INVALID, 'sharding="whole"', piece.shaped)
        refused(megadp.Status.INVALID, "name is 'rows'; a piece has master, grad", piece.shaped, "rows")

    optimizer.set_update(update)
    for name, shape in (("all", (4, 5)), ("cut", (40, 30))):
        buffer.put(name, np.ones(shape, np.float32))
    optimizer.step()


def case_interrupted():
    """Ctrl-C in an update function, on rank 0: KeyboardInterrupt there, ABORTED on the others, and the communicator is whole."""
    buffer = buffer_of()
    optimizer = optimizer_of(buffer)

    def update(piece):
        if comm.rank == 0:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                pass

    optimizer.set_update(update)
    error = raised_by(lambda: by_function(buffer, optimizer, 0))
    if comm.rank == 0:
        assert isinstance(error, KeyboardInterrupt), error
    else:
        assert (error.code, error.rank) == (ABORTED, 0), error
    assert comm.error is None
    comm.barrier()


def case_kept():
    """What the library calls is kept: the update that a copy of the optimizer has set, of which nothing else is left, and one behind whose
    set_update a signal's handler has raised."""
    def update(piece):
        taken.append(piece.param)
        adamw(piece)

    def set_by_a_copy():
        copy.copy(optimizer).set_update(lambda piece: update(piece))

    def interrupted():
        real = optimizer._handle.call

        def call_and_raise(*arguments):
            real(*arguments)
            raise KeyboardInterrupt

        function = lambda piece: update(piece)
        kept.append(weakref.ref(function))
        with unittest.mock.patch.object(optimizer._handle, "call", call_and_raise):
            error = raised_by(lambda: optimizer.set_update(function))
        assert isinstance(error, KeyboardInterrupt), error

    buffer = buffer_of()
    optimizer = optimizer_of(buffer)
    kept = []
    optimizer.set_update(adamw)
    for step, set_it in enumerate((set_by_a_copy, interrupted)):
        taken = []
        set_it()
        gc.collect()
        by_function(buffer, optimizer, step)
        assert taken, set_it
    assert kept[0]() is not None
    optimizer.set_update(adamw)
    gc.collect()
    assert kept[0]() is None
    adam = optimizer_of(buffer, "adamw")
    refused(STATE_CODE, "only MDP_RULE_CALLER", adam.set_update, adamw)
    assert adam._shared.kept == []


def case_interrupted_at_the_ends():
    """On rank 0 a signal's handler raises behind the call that begins a step by pieces, or behind the one that ends it: nobody ended the step, and
    all later calls were STATE."""
    buffer = buffer_of()
    optimizer = optimizer_of(buffer)
    for step, at_end in enumerate((False, True)):
        calls, real = [], _pieces.run

        def run(call):
            real(call)
            calls.append(call)
            if comm.rank == 0 and not raised and (entered if at_end else len(calls) == 1):
                raised.append(True)
                raise KeyboardInterrupt

        entered, raised = [], []
        put(buffer, step)

        def take():
            with optimizer.pieces(loss_scale=1) as pieces:
                for piece in pieces:
                    adamw(piece)
                entered.append(True)

        with unittest.mock.patch.object(_pieces, "run", run):
            error = take() if at_end and comm.rank else raised_by(take)
        if comm.rank == 0:
            assert isinstance(error, KeyboardInterrupt), error
        elif not at_end:
            assert (error.code, error.rank) == (ABORTED, 0), error
        if not at_end:
            optimizer.set_steps(step)
    by_pieces(buffer, optimizer, 2)
    assert comm.error is None


if __name__ == "__main__":
    globals()["case_" + sys.argv[1]]()
    sys.stdout.write(f"{sys.argv[1]}: ok\n")  # at once: the ranks share a pipe
    sys.stdout.flush()
