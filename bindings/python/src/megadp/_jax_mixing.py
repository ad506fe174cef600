# SPDX-License-Identifier: Apache-2.0
"""Whether a gradient transformation's update of an element goes by other elements of its parameter, which is another thing on pieces. A trial
by values does not show a norm that is only compared with a threshold (u * min(1, T / norm(u))): here an update is traced without values, and
what comes from the elements is followed through all that is computed."""
import functools
import inspect
import math
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple

import jax
import numpy

from ._jax_shapes import called, shaped


class Mark(NamedTuple):
    """What is known of a value.

    axes: along which it varies, as the elements of a parameter do (those of more than one element, in the parameter's order) or, where
    `places`, only as their places do. by: in words, by what of several elements it goes; the rest says nothing then.
    """

    axes: Tuple[int, ...] = ()
    places: bool = False
    by: str = ""


PLAIN = Mark()  # the same for all elements: constants, counts
_LOOP = Mark(by="a loop over elements")
_REF = Mark(by="what is kept in a Ref (jax.new_ref)")  # which other equations write to
_SAYS = {"reduce_sum": "a sum of elements", "reduce_max": "the largest of elements", "reduce_min": "the smallest of elements",
         "reduce_prod": "a product of elements", "reduce_and": "whether all elements are something", "reduce_or": "whether any element is something",
         "argmax": "which element is the largest", "argmin": "which element is the smallest", "dot_general": "a product of vectors or matrices",
         "cumsum": "a running sum", "sort": "a sorting of elements", "top_k": "the largest of elements", "fft": "a Fourier transform",
         "conv_general_dilated": "a convolution", "iota": "the place of an element", "concatenate": "elements put in other places",
         "rev": "elements put in other places", "transpose": "elements put in other places", "slice": "elements taken out",
         "dynamic_slice": "elements taken out", "gather": "elements taken out", "pad": "elements put in other places"}
_LINEAR_ALGEBRA = frozenset("cholesky cholesky_update custom_linear_solve eig eigh geqrf geqp3 hessenberg householder_product lu ormqr qr schur svd "
                            "symmetric_product triangular_solve tridiagonal tridiagonal_solve".split())
_OF_AXIS = ("axis", "axes", "dimension", "dimensions")
_ALONG = frozenset("argmax argmin concatenate cumlogsumexp cummax cummin cumprod cumsum reduce rev sort split top_k unstack".split())


def _mixed(primitive: str) -> Mark:
    if primitive in _LINEAR_ALGEBRA:
        return Mark(by=f"linear algebra ({primitive})")
    if "call" in primitive:
        return Mark(by=f"a function that is not looked into ({primitive})")
    return Mark(by=_SAYS.get(primitive, f"what {primitive} makes of several elements"))


def _long(shape: Sequence[int]) -> Tuple[int, ...]:
    """Along an axis of one element nothing is mixed."""
    return tuple(axis for axis, size in enumerate(shape) if size != 1)


def _together(marks: Iterable[Mark]) -> Mark:
    """Of what is made of the same element of each, or is one of them."""
    given = [mark for mark in marks if mark.axes or mark.by]
    for mark in given:
        if mark.by:
            return mark
    elements = {mark.axes for mark in given if not mark.places}
    places = {axis for mark in given if mark.places for axis in mark.axes}
    if not elements:
        return Mark(tuple(sorted(places)), bool(places))
    if len(elements) > 1:
        return Mark(by="different elements together")
    own = elements.pop()
    return _mixed("iota") if places & set(own) else Mark(own)


def _moved(mark: Mark, to: Mapping[int, int], primitive: str) -> Mark:
    """Each axis becomes another one. Those that are not in `to` are gone, which is right for places alone."""
    axes = tuple(to[axis] for axis in mark.axes if axis in to)
    if mark.places:
        return Mark(tuple(sorted(axes)), True)
    return Mark(axes) if len(axes) == len(mark.axes) else _mixed(primitive)


def _reshaped(mark: Mark, shape: Sequence[int], new: Sequence[int]) -> Mark:
    """By runs of axes that come to the same number of elements."""
    if 0 in shape:
        return PLAIN
    to: Dict[int, Tuple[int, ...]] = {}
    i = j = 0
    while i < len(shape) or j < len(new):
        olds, news = [i] if i < len(shape) else [], [j] if j < len(new) else []
        i, j = i + len(olds), j + len(news)
        while (size := math.prod(shape[axis] for axis in olds)) != (made := math.prod(new[axis] for axis in news)):
            if size < made:
                olds, i = [*olds, i], i + 1
            else:
                news, j = [*news, j], j + 1
        run = tuple(axis for axis in olds if shape[axis] != 1)
        of_run = tuple(axis for axis in mark.axes if axis in run)
        at = mark.axes.index(of_run[0]) if of_run else 0
        if of_run and not mark.places and mark.axes[at:at + len(run)] != run:  # another order, or some of it only
            return _mixed("transpose")
        if of_run:
            to[of_run[0]] = tuple(axis for axis in news if new[axis] != 1)
    return mark._replace(axes=tuple(axis for old in mark.axes for axis in to.get(old, ())))


def _along(equation: Any) -> Optional[FrozenSet[int]]:
    """The axes of its operand along which a primitive mixes; None of one that does something else."""
    name, params = equation.primitive.name, equation.params
    shape = equation.invars[0].aval.shape if equation.invars else ()
    if name in _ALONG or name.startswith("reduce_") and "axes" in params:
        found = next((params[key] for key in _OF_AXIS if key in params), len(shape) - 1)
        return frozenset([found] if isinstance(found, int) else found)
    if name == "fft":
        return frozenset(range(len(shape) - len(params["fft_lengths"]), len(shape)))
    if name in ("slice", "dynamic_slice"):
        return frozenset(axis for axis, size in enumerate(equation.outvars[0].aval.shape) if size != shape[axis])
    if name == "dynamic_update_slice":
        return frozenset(axis for axis, size in enumerate(equation.invars[1].aval.shape) if size != shape[axis])
    if name == "pad":
        return frozenset(axis for axis, config in enumerate(params["padding_config"]) if any(config))
    if name.startswith("reduce_window") or name == "cumred_reduce_window":
        return frozenset(axis for axis, size in enumerate(params["window_dimensions"]) if size != 1)
    return None


def _keeps_shape(equation: Any) -> bool:
    """Where all operands are of one shape, or have one element along some of its axes, or but one."""
    operands = [each.aval.shape for each in equation.invars if getattr(each.aval, "shape", ())]
    return all(len(shape) == len(out.aval.shape) and all(size in (1, whole) for size, whole in zip(shape, out.aval.shape))
               for shape in operands for out in equation.outvars)


def _inner(equation: Any) -> Any:
    """The jaxpr whose results, of the operands as they are, an equation has; None of others, as of a reduction: its function is of two elements."""
    def shapes(of: Any) -> List[Any]:
        return [[getattr(atom.aval, "shape", None) for atom in atoms] for atoms in (of.invars, of.outvars)]

    found = called(equation.params)
    jaxpr = getattr(found, "jaxpr", found)
    return found if jaxpr is not None and shapes(jaxpr) == shapes(equation) else None


def _is_function(param: Any) -> bool:
    """Whether an equation's parameter is a jaxpr, or a function of the program's, or has some."""
    if isinstance(param, (tuple, list)):
        return any(map(_is_function, param))
    return hasattr(getattr(param, "jaxpr", param), "eqns") or inspect.isroutine(param) or isinstance(param, functools.partial)


class _Walk:
    """Marks of what a jaxpr returns, from those of what it is given."""

    def run(self, jaxpr: Any, given: Sequence[Mark]) -> List[Mark]:
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        known: Dict[Any, Mark] = dict(zip(jaxpr.invars, given))

        def of(atom: Any) -> Mark:
            if hasattr(atom.aval, "inner_aval"):
                return _REF
            return PLAIN if hasattr(atom, "val") else known.get(atom, PLAIN)

        for equation in jaxpr.eqns:
            known.update(zip(equation.outvars, self._equation(equation, [of(each) for each in equation.invars])))
        return [of(each) for each in jaxpr.outvars]

    def _equation(self, equation: Any, given: List[Mark]) -> List[Mark]:
        name, params, outs = equation.primitive.name, equation.params, len(equation.outvars)
        if not outs:  # as jax.debug.print's
            return []
        if name == "cond":
            found = [self.run(branch, given[1:]) for branch in params["branches"]]
            return [_together([given[0], *each]) for each in zip(*found)]
        if name == "scan":
            return self._scan(params, given)
        if name == "while":
            return self._while(params, given)
        inner = _inner(equation)
        if inner is not None:
            return self.run(inner, given)
        bad = next((mark for mark in given if mark.by), None)
        if bad is not None:
            return [bad] * outs
        long = [_long(getattr(each.aval, "shape", ())) for each in equation.outvars]
        return [mark._replace(axes=tuple(axis for axis in mark.axes if axis in axes)) for mark, axes in zip(self._primitive(equation, given), long)]

    def _scan(self, params: Any, given: List[Mark]) -> List[Mark]:
        fixed, carried, several = params["num_consts"], params["num_carry"], params["length"] != 1
        slices = [mark._replace(axes=tuple(axis - 1 for axis in mark.axes if axis)) for mark in given[fixed + carried:]]
        each = [_LOOP if several and 0 in mark.axes and not mark.places else part for mark, part in zip(given[fixed + carried:], slices)]
        now, found = self._settled(given[fixed:fixed + carried], lambda now: self.run(params["jaxpr"], [*given[:fixed], *now, *each]))
        gathered = [mark._replace(axes=tuple(axis + 1 for axis in mark.axes)) for mark in found[carried:]]
        if _LOOP not in now and all(mark.axes[:1] == (0,) for mark, part in zip(given[fixed + carried:], each) if part == _LOOP):
            parts = self.run(params["jaxpr"], [*given[:fixed], *now, *slices])[carried:]  # nothing goes from one to the next
            gathered = [Mark((0, *(() if part.places else (axis + 1 for axis in part.axes))), by=part.by) if mark == _LOOP else mark
                        for mark, part in zip(gathered, parts)]
        return [*now, *gathered]

    def _while(self, params: Any, given: List[Mark]) -> List[Mark]:
        tested, fixed = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        now, _ = self._settled(given[fixed:], lambda now: self.run(params["body_jaxpr"], [*given[tested:fixed], *now]))
        goes_on = self.run(params["cond_jaxpr"], [*given[:tested], *now])[0]  # of one element each, under vmap
        return [_together([goes_on, mark]) for mark in now]

    def _settled(self, now: List[Mark], body: Callable[[List[Mark]], List[Mark]]) -> Tuple[List[Mark], List[Mark]]:
        """What is carried after any number of rounds, and all that the last one returns."""
        while True:
            found = body(now)
            after = [_together(pair) for pair in zip(now, found)]
            if after == now:
                return now, found
            now = after

    def _primitive(self, equation: Any, given: List[Mark]) -> List[Mark]:
        """given: none of them mixed."""
        name, params, outs = equation.primitive.name, equation.params, len(equation.outvars)
        shape, out = getattr(equation.invars[0].aval, "shape", ()) if given else (), equation.outvars[0].aval
        if name in ("iota", "random_bits"):
            return [Mark((params["dimension"],) if name == "iota" else _long(out.shape), True)]
        if all(not mark.axes for mark in given):
            return [PLAIN] * outs
        if name in ("reshape", "squeeze"):
            return [_reshaped(given[0], shape, out.shape)]
        if name == "broadcast_in_dim":
            return [_moved(given[0], {axis: int(to) for axis, to in enumerate(params["broadcast_dimensions"])}, name)]
        if name == "transpose":
            return [_moved(given[0], {axis: to for to, axis in enumerate(params["permutation"])}, name)]
        if name == "stack":
            return [_moved(_together(given), {axis: axis + (axis >= params["axis"]) for axis in range(len(shape))}, name)]
        if name == "bitcast_convert_type":  # an element is some smaller ones, along a last axis
            return [_moved(given[0], {axis: axis for axis in range(len(out.shape))}, name)]
        if name == "dot_general":
            return [self._product(equation, given)]
        if name == "gather":
            return [self._gathered(equation, given)]
        mark = _together(given)
        along = _along(equation)
        if mark.by:
            return [mark] * outs
        if along is not None:
            if along & set(mark.axes) and not mark.places:
                return [_mixed(name)] * outs
            goes = len(out.shape) < len(shape)
            stays = [axis for axis in range(len(shape)) if not (goes and axis in along)]
            return [_moved(mark, {axis: to for to, axis in enumerate(stays)} if goes else {axis: axis for axis in stays}, name)] * outs
        # Others that keep the shape are taken for element by element, but not what calls a function that was not walked through.
        unseen = "call" in name or any(map(_is_function, params.values()))
        if not (unseen or name in _LINEAR_ALGEBRA or name.startswith(("conv_general", "scatter", "select_and"))) and _keeps_shape(equation):
            return [mark] * outs
        return [Mark(_long(each.aval.shape), True) if mark.places else _mixed(name) for each in equation.outvars]

    def _product(self, equation: Any, given: List[Mark]) -> Mark:
        (left, right), batches = equation.params["dimension_numbers"]
        found, place = [], len(batches[0])
        for mark, variable, contracted, batch in zip(given, equation.invars, (left, right), batches):
            rest = [axis for axis in range(len(variable.aval.shape)) if axis not in contracted and axis not in batch]
            to = {**{axis: i for i, axis in enumerate(batch)}, **{axis: place + i for i, axis in enumerate(rest)}}
            place += len(rest)
            found.append(_moved(mark, to, "dot_general"))
        mark = _together(found)
        return mark if not mark.by else _mixed("dot_general")

    def _gathered(self, equation: Any, given: List[Mark]) -> Mark:
        """Of a table of anything at places that elements say, or of one of several arrays of elements."""
        numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
        table, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
        gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        kept = [axis for axis in range(len(table)) if axis not in gone]
        whole = {axis: numbers.offset_dims[i] for i, axis in enumerate(kept) if sizes[axis] == table[axis]}
        by_places = [axis for axis in range(len(out)) if axis not in numbers.offset_dims]
        return _together([_moved(given[0], whole, "gather"), _moved(given[1], dict(enumerate(by_places)), "gather")])


def _follow(update: Any, own: List[Mark], state: List[Mark]) -> Tuple[List[Mark], List[Mark]]:
    """The marks of updates and of the state, when these have gone through as many steps as bring something new."""
    while True:
        found = _Walk().run(update, [*own, *own, *state])
        updates, after = found[:len(own)], found[len(own):]
        if len(after) != len(state):
            return updates, after
        after = [_together(pair) for pair in zip(state, after)]
        if after == state:
            return updates, state
        state = after


def check_mixing(transformation: Any, tree: Any, refuse: Callable[[str], NoReturn]) -> None:
    """That no element's update goes by other elements, in a pytree of these shapes."""
    named, structure = jax.tree_util.tree_flatten_with_path(tree)
    shapes = [tuple(numpy.shape(leaf)) for _, leaf in named]
    params = jax.tree_util.tree_unflatten(structure, [shaped(shape) for shape in shapes])
    own = [Mark(_long(shape)) for shape in shapes]

    def step(params: Any, grads: Any, state: Any) -> Any:
        return transformation.update(grads, state, params)

    jaxpr, begun = jax.make_jaxpr(transformation.init, return_shape=True)(params)
    state = _Walk().run(jaxpr, own)
    for _ in range(2):  # a state that has been updated may have another form than the first one
        jaxpr, (_, then) = jax.make_jaxpr(step, return_shape=True)(params, params, begun)
        updates, state = _follow(jaxpr, own, state)
        kept = jax.tree_util.tree_flatten_with_path(then)[0]
        _refuse_mixed("", zip(named, shapes, updates), refuse)
        # A number may go by all elements if no update does: only whole arrays are kept.
        _refuse_mixed("its state ", ((each, each[1].shape, mark) for each, mark in zip(kept, state) if each[1].shape != ()), refuse)
        if str(jax.tree_util.tree_structure(begun)) == str(jax.tree_util.tree_structure(then)):
            return
        begun = then


def _refuse_mixed(what: str, found: Iterable[Tuple[Any, Any, Mark]], refuse: Callable[[str], NoReturn]) -> None:
    for (path, _), shape, mark in found:
        if not mark.places and mark.axes != tuple(sorted(mark.axes)):
            mark = _mixed("transpose")
        if mark.by and 0 not in shape:
            refuse(f"{what}{jax.tree_util.keystr(path) or 'params'} of shape {tuple(shape)} goes by {mark.by}, not by each element alone, and a piece "
                   "does not have them all")
