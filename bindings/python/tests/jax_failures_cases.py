# SPDX-License-Identifier: Apache-2.0
"""What test_jax.py runs on some ranks: gradients that come twice or to an earlier training, and leaves that are no parameters or no gradients.
Prints CASE on each rank.

usage: jax_failures_cases.py CASE
"""
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import megadp
import megadp.jax
from megadp import _jax_failures

comm = megadp.Comm(timeout=60)
params = {"w": jnp.ones((2, 2)), "b": jnp.ones(2)}
last = comm.rank == comm.size - 1  # the rank that fails alone


def refused(call, here):
    """On all ranks: here it has failed, or another one says so."""
    try:
        call()
    except megadp.MegaDPError as error:
        assert error.code == megadp.Status.STATE, error
        for word in ("differentiated twice", "begin_microbatch") if here else (f"rank {comm.size - 1} could not hand over", "begun anew"):
            assert word in error.text, (word, error)
        assert "uses_per_step" not in str(error) and (here or error.rank == comm.size - 1), error
        return
    raise AssertionError("nothing was said")


def sum_of(tracking, power=1):
    return jax.jit(jax.grad(lambda p: sum(leaf.sum() ** power for leaf in jax.tree.leaves(tracking.track(p)))))


def trained(faults, where=comm, ending="step", **options):
    training = megadp.jax.DataParallel(where, params, lr=0.1, bucket_elements=1, **options)
    backward = sum_of(training, 2)
    unchecked = ending == "unchecked"
    for fault in faults:
        here = fault == "all" or fault == "one" and last
        if fault == "microbatch":
            training.begin_microbatch(False)
            backward(training.read())
            backward(training.read())
            training.begin_microbatch(True)  # of no sync: told at its end
            backward(training.read())
            refused(training.step, True)
            continue
        backward(training.read())
        if here:
            backward(training.read())
            refused(lambda: training.begin_microbatch(True), True)  # which keeps it
        if fault is None:
            report = training.step(unchecked=unchecked)
        else:
            refused(training.sync if ending == "sync" else lambda: training.step(unchecked=unchecked), here)
    training.buffer.wait()
    training.buffer.verify()
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(training.read())], report.step


def case_twice():
    """A function that is differentiated twice before a step, on all ranks or on one: the step is refused on all of them and the next one begins,
    with parameters as if nothing had been. Likewise by sync, an unchecked step, and where microbatches are said."""
    plain = trained((None, None))
    faults = (None, "all", "one", "one", "microbatch", None) if comm.size > 1 else ("all", None, "all", None)
    for options in ({}, dict(sharding="zero_2"), dict(sharding="zero_0"), dict(sharding="whole"), dict(missing="zero"), dict(ending="sync"),
                    dict(ending="unchecked", overlap=False), dict(check_finite=True), dict(where=megadp.Grid(comm))):
        assert trained(faults, **options) == plain, options
    if comm.size == 2:  # ranks that share no gradients
        alone = dict(where=megadp.Grid(comm, tp=2), placements=dict.fromkeys(params, "replicated"))
        assert trained(faults, **alone) == trained((None, None), **alone)
    twice_averaged()
    after_sync()


def twice_averaged():
    averaging = megadp.jax.Averaging(comm, params)
    ones = jax.tree.map(jnp.ones_like, params)
    backward = sum_of(averaging)
    backward(params)
    if last:
        backward(params)
    refused(averaging.average, last)
    averaging.put(ones)
    refused(lambda: averaging.average(ones), True)  # put and given
    for mean in (averaging.average(ones), backward(params) and averaging.average()):
        jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 1), mean)


def after_sync():
    """What comes after the sync is left out, and told after the step."""
    training = megadp.jax.DataParallel(comm, params, rule="sgd", lr=1.0)
    backward = sum_of(training)
    backward(training.read())
    training.sync()
    backward(training.read())
    try:
        training.step()
        raise AssertionError("nothing was said")
    except megadp.MegaDPError as error:
        assert "comes after sync() and is left out" in error.text, error
    backward(training.read())
    assert training.step().step == 2
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, -1), training.read())


def case_stale():
    """A function of jit that has been compiled with the track of an earlier training, and reads the new one from the same variable."""
    x = jnp.ones((2, 2))
    for options, closes, good_steps, word in ((dict(), False, 0, "never became ready"), (dict(missing="zero"), False, 1, "not stepped"),
                                              (dict(missing="skip"), True, 0, "is closed")):
        training = None
        backward = jax.jit(lambda p: jax.grad(lambda p: sum((leaf * x).sum() for leaf in jax.tree.leaves(training.track(p))))(p))
        for _ in range(2):
            earlier, training = training, megadp.jax.DataParallel(comm, params, rule="sgd", lr=0.5, **options)
            if earlier is None:
                backward(training.read())
                training.step()
        if closes:
            earlier.buffer.close()
        for _ in range(good_steps):
            backward(training.read())
            training.step()
        backward(training.read())
        try:
            training.step()
            raise AssertionError(f"nothing was said with {options}")
        except megadp.MegaDPError as error:
            assert error.code == megadp.Status.STATE and word in error.text and "jax.clear_caches()" in error.text, error
        jax.clear_caches()
        backward(training.read())
        assert training.step().step == 1 + good_steps
        np.testing.assert_array_equal(training.read()["w"], 0.5)
    side_by_side()


def side_by_side():
    """Two trainings of the same pytree in turn: what is wrong with the older one is told there alone."""
    older, newer = (megadp.jax.DataParallel(comm, params, rule="sgd", lr=0.5) for _ in range(2))
    of_older, of_newer = sum_of(older), sum_of(newer)
    for step in range(3):
        of_older(older.read())
        if step == 1:
            of_older(older.read())
            refused(older.step, True)
        else:
            older.step()
        of_newer(newer.read())
        assert newer.step().step == step + 1


def told_by(program):
    """How many warnings of gradients that were left out come."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        program()
        jax.effects_barrier()
    return sum("gradients are left out" in str(each.message) and "this rank's own" in str(each.message) for each in told)


def case_untaken():
    """Who takes what jax.grad returns for the mean, and never steps, was not told that the ranks train apart. Others are not warned."""
    def without_a_step(*kinds):
        for kind in kinds:
            training, ours = kind(comm, params), params
            backward = sum_of(training, 2)
            for _ in range(5):
                ours = jax.tree.map(lambda p, g: p - 0.1 * g, ours, backward(ours))

    assert told_by(lambda: without_a_step(megadp.jax.DataParallel, megadp.jax.Averaging)) == 2

    def microbatches():
        training = megadp.jax.DataParallel(comm, params)
        backward = sum_of(training, 2)
        for last in 2 * (False, False, True):
            training.begin_microbatch(last)
            backward(training.read())
            if last:
                training.step()

    def own_steps():
        training = megadp.jax.DataParallel(comm, params)
        backward = sum_of(training, 2)
        for _ in range(3):
            backward(training.read())
            training.optimizer.step()

    def steps_that_raise():
        training = megadp.jax.DataParallel(comm, params)
        backward = sum_of(training, 2)
        for lr in ("much", 0.1, 0.1):  # of the first one the gradients stay, and those of the second backward are refused
            backward(training.read())
            try:
                training.step(lr=lr)
            except (TypeError, megadp.MegaDPError):
                pass

    for program in (microbatches, own_steps, steps_that_raise, side_by_side, after_sync):
        assert told_by(program) == 0, program


def case_unlike():
    """A step that ranks are told differently changes nothing, and the next one can be taken."""
    training = megadp.jax.DataParallel(comm, params)
    backward = sum_of(training, 2)
    for mine, right in ((0.1, True), (0.1 * (comm.rank + 1), False), (0.1, True)):
        backward(training.read())
        try:
            report = training.step(lr=mine, unchecked=True)
            assert right
        except megadp.InvalidError as error:
            assert not right and "told the learning rate 0.1" in error.text, error
    assert report.step == 2, report


def case_traced():
    """A call inside of jit ran once, as it was compiled: parameters were what they had been then for ever, and no step was taken, without a word."""
    x = jnp.ones((2, 2))
    training, averaging = megadp.jax.DataParallel(comm, params, rule="sgd", lr=0.5), megadp.jax.Averaging(comm, params)
    refused_traced(training, averaging, x)
    known, _jax_failures._trace_state = _jax_failures._trace_state, None  # as with an older JAX
    refused_traced(training, averaging, x)
    training.read()
    _jax_failures._trace_state = known
    before = training.buffer.stats().syncs
    # What is not compiled is taken, with values; track() belongs into both.
    jax.grad(lambda y: (y * training.read()["w"]).sum())(x)
    jax.vmap(lambda y: y * training.read()["w"])(x)
    with jax.disable_jit():
        jax.jit(lambda y: y * training.read()["w"])(x)
    jax.jit(jax.grad(lambda p: sum(leaf.sum() for leaf in jax.tree.leaves(training.track(p)))))(training.read())
    assert training.step().step == 1 and training.buffer.stats().syncs == before + 1
    np.testing.assert_array_equal(training.read()["w"], 0.5)
    jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 1), averaging.average(params))


def refused_traced(training, averaging, x):
    for call in (training.read, training.step, training.sync, training.use_order, lambda: training.put(params), averaging.average,
                 lambda: training.begin_microbatch(True), training.averaged, training.buffer.zero_grad, training.buffer.wait,
                 training.optimizer.step, training.optimizer.pieces, training.optimizer.swap_average,
                 lambda: training.buffer.put("['b']", np.ones(2, np.float32)),
                 lambda: megadp.jax.save_checkpoint("nowhere", training), lambda: megadp.jax.load_checkpoint("nowhere", training)):
        for trace in (lambda f: jax.jit(f)(x), lambda f: jax.lax.scan(lambda carry, y: (carry, f(y)), 0.0, x), lambda f: jax.eval_shape(f, x),
                      lambda f: jax.grad(lambda y: jax.jit(f)(y).sum())(x), lambda f: jax.pmap(f)(x[None])):
            try:
                trace(lambda y: (call(), y)[1])
                raise AssertionError("nothing was said")
            except megadp.MegaDPError as error:
                assert error.code == megadp.Status.STATE and "only track() belongs there" in error.text, error


def case_outside():
    """track() outside of the function that is differentiated hands nothing over: where gradients may be missing nothing was trained, without a
    word."""
    grad = jax.grad(lambda p: sum(leaf.sum() for leaf in jax.tree.leaves(p)))
    training = megadp.jax.DataParallel(comm, params)
    grad(training.track(params))
    try:
        training.step()
        raise AssertionError("nothing was said")
    except megadp.MegaDPError as error:
        assert "never became ready" in error.text and "track() is called in the function that is differentiated" in error.text, error
    for missing in ("zero", "skip"):
        for kind, end in ((megadp.jax.DataParallel, "step"), (megadp.jax.Averaging, "average")):
            training = kind(comm, params, missing=missing)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                for _ in range(3):
                    grad(training.track(params))
                    getattr(training, end)()
            assert len(told) == 1 and "without any gradient of this rank's" in str(told[0].message), list(map(str, told))
            assert told[0].filename == __file__, told[0]
    training = megadp.jax.DataParallel(comm, params, missing="zero")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.step()  # a rank without a batch
        sum_of(training)(training.read())
        training.step()
        training.track(params)
        training.step()


def case_put():
    """What cannot be put is named, and nothing has been put then."""
    averaging = megadp.jax.Averaging(comm, params)
    ones = jax.tree.map(jnp.ones_like, params)
    donated = jnp.ones(2)
    donated.delete()
    for leaf, word in ((None, "is None; it must be an array"), (jnp.ones(2, jnp.int32), "has dtype int32; it must be float32"),
                       (np.ones(2, ">f4"), "in this machine's byte order"),
                       (jnp.ones(2, bool), "has dtype bool"), (donated, "has been deleted")):
        for give in (averaging.put, averaging.average):
            try:
                give({**ones, "b": leaf})
                raise AssertionError(f"nothing was said of {word}")
            except megadp.InvalidError as error:
                assert "['b']" in error.text and word in error.text, error
        jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 1), averaging.average(ones))


def case_put_on_one():
    """What cannot be put on the last rank alone: the others waited for it until the timeout."""
    ones = jax.tree.map(jnp.ones_like, params)
    for options in ({}, dict(missing="zero")):
        averaging = megadp.jax.Averaging(comm, params, **options)
        for wrong, kind in (({**ones, "b": None}, megadp.InvalidError), ({**ones, "b": jnp.ones(3)}, megadp.InvalidError),
                            ({**ones, "b": jnp.ones(2, jnp.int32)}, megadp.InvalidError), ({"w": ones["w"]}, ValueError)):
            try:
                averaging.average(wrong if last else ones)
                raise AssertionError("nothing was said")
            except kind if last else megadp.MegaDPError as error:
                assert last or (error.code, error.rank) == (megadp.Status.STATE, comm.size - 1), error
            jax.tree.map(lambda leaf: np.testing.assert_array_equal(leaf, 1), averaging.average(ones))


def no_parameter(leaf, *words, kinds=(megadp.jax.DataParallel, megadp.jax.Averaging)):
    for kind in kinds:
        try:
            kind(comm, {"w": jnp.ones(3), "part": [jnp.ones(3), leaf]})
        except megadp.InvalidError as error:
            for word in ('leaf "[\'part\'][1]" of params', *words):
                assert word in error.text, (word, error)
            assert "astype" not in error.text, error
        else:
            raise AssertionError(f"nothing was said of {leaf}")


def case_leaves():
    """They are named, with advice."""
    out = "out of params", "eqx.partition"
    no_parameter(1.5, "1.5, a float, and no array", "jax.numpy.float32", *out)
    no_parameter(2, "2, a int", *out)
    no_parameter("name", "'name', a str", *out)
    no_parameter(jax.nn.relu, "no array", *out)
    for leaf in (jnp.zeros((), jnp.int32), np.arange(3), jnp.zeros(2, bool), jax.random.PRNGKey(0)):
        no_parameter(leaf, f"has dtype {leaf.dtype}, which cannot be trained", *out)
    no_parameter(jax.random.key(0), "has dtype key<", *out)
    no_parameter(jax.ShapeDtypeStruct((3,), jnp.float32), "has no values", kinds=(megadp.jax.DataParallel,))
    megadp.jax.Averaging(comm, {"w": jax.ShapeDtypeStruct((3,), jnp.float32)})
    try:
        megadp.jax.DataParallel(comm, {"w": np.ones(3)})
        raise AssertionError("nothing was said of float64")
    except megadp.InvalidError as error:
        assert "astype(numpy.float32)" in error.text, error
    training = megadp.jax.DataParallel(comm, {"w": jnp.ones(3), "none": None, "s": np.float32(1), "h": np.ones(2, jnp.bfloat16)})
    assert len(training.buffer.params) == 3


if __name__ == "__main__":
    globals()["case_" + sys.argv[1]]()
    sys.stdout.write(f"{sys.argv[1]}\n")  # at once: the ranks share a pipe
    sys.stdout.flush()
