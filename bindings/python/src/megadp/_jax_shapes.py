# SPDX-License-Identifier: Apache-2.0
"""Whether a gradient transformation does with what it is given here, a flat piece or a parameter by itself, what it does with the parameter
in its pytree. A trial on small arrays does not show what goes by sizes (a mask of what has more than 3000 elements), and one of true sizes
takes memory and time: here updates are traced without values, and what each leaf's comes from is compared."""
from typing import Any, Callable, Dict, Iterable, List, NoReturn, Optional, Sequence, Tuple

import jax
import numpy

_STEPS = 2  # the first makes the state, the second goes by it
_ROUNDS = 3  # of what a loop carries; deeper differences of loops are for the trials on small arrays
_LAYOUT = ("broadcast_in_dim", "copy", "copy_p", "expand_dims", "reshape", "squeeze", "transpose")  # which elements stand where
_OF_SHAPES = ("axis", "dimension", "weak_type")
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr", "callee", "call")  # of jit and its like, custom_jvp, custom_vjp, linear_call, custom_vmap


def called(params: Any) -> Any:
    """The jaxpr that a primitive of these parameters calls; None of most."""
    return next((found for found in map(params.get, _CALLED) if hasattr(getattr(found, "jaxpr", found), "eqns")), None)


class _Forms:
    """A number for each way of making a value from p (the parameter) and g0, g1 (its gradients); the same for the same way, whatever the
    shapes are."""

    def __init__(self) -> None:
        self._numbers: Dict[Any, int] = {}

    def number(self, *way: Any) -> int:
        return self._numbers.setdefault(way, len(self._numbers))

    def constant(self, value: Any) -> int:
        """By its element, where it has but one."""
        try:
            array = numpy.asarray(value)
            flat = array.reshape(-1)
            if flat.size > 1 and not (flat == flat[0]).all():
                return self.number("constant", array.dtype.name, array.shape, array.tobytes())
            return self.number("constant", array.dtype.name, flat[:1].tobytes())
        except TypeError:  # a random key
            return self.number("constant", str(value))

    def run(self, jaxpr: Any, given: Sequence[int], consts: Optional[Sequence[int]] = None) -> List[int]:
        """Of what a jaxpr returns."""
        if hasattr(jaxpr, "consts"):
            jaxpr, consts = jaxpr.jaxpr, [self.constant(each) for each in jaxpr.consts]
        known: Dict[Any, int] = dict(zip(jaxpr.constvars, consts or ()))
        known.update(zip(jaxpr.invars, given))

        def of(atom: Any) -> int:
            return self.constant(atom.val) if hasattr(atom, "val") else known[atom]

        for equation in jaxpr.eqns:
            known.update(zip(equation.outvars, self._equation(equation, [of(each) for each in equation.invars])))
        return [of(each) for each in jaxpr.outvars]

    def _equation(self, equation: Any, given: List[int]) -> List[int]:
        name, params = equation.primitive.name, equation.params
        if name in _LAYOUT:
            return given[:1]
        if name == "convert_element_type" and equation.invars[0].aval.dtype == params["new_dtype"]:
            return given[:1]
        if name == "cond":
            ways = [self.run(branch, given[1:]) for branch in params["branches"]]
            return [self.number("cond", given[0], each) for each in zip(*ways)]
        if name == "scan":
            fixed, carried = params["num_consts"], params["num_carry"]
            return self._loop(("scan", params["length"], params["reverse"]), params["jaxpr"], given[:fixed],
                              given[fixed:fixed + carried], given[fixed + carried:])
        if name == "while":
            tested, fixed = params["cond_nconsts"], params["body_nconsts"]
            until = self._last_loop(params["cond_jaxpr"], given[:tested], given[tested + fixed:])
            return self._loop(("while", until), params["body_jaxpr"], given[tested:tested + fixed], given[tested + fixed:], ())
        inner = called(params)
        found = getattr(inner, "jaxpr", inner)
        if found is not None and len(found.invars) == len(given) and len(found.outvars) == len(equation.outvars):
            return self.run(inner, given)
        simple = tuple(sorted((key, str(value)) for key, value in params.items() if key not in _OF_SHAPES and isinstance(
            value, (bool, int, float, complex, str, numpy.dtype, numpy.generic))))
        way = self.number(name, simple, tuple(given))
        return [way] if len(equation.outvars) == 1 else [self.number(way, place) for place in range(len(equation.outvars))]

    def _loop(self, kind: Any, body: Any, fixed: Sequence[int], carried: Sequence[int], each: Sequence[int]) -> List[int]:
        """What a loop of any number of values makes of one does not go by how many it carries besides."""
        found: List[int] = []
        now = list(carried)
        for _ in range(_ROUNDS):
            found = self.run(body, [*fixed, *(self.number("carried", kind, way) for way in now), *each])
            now = [self.number(*pair) for pair in zip(now, found)]
        return [*now, *(self.number("gathered", kind, way) for way in found[len(carried):])]

    def _last_loop(self, test: Any, fixed: Sequence[int], carried: Sequence[int]) -> int:
        return self.run(test, [*fixed, *(self.number("tested", way) for way in carried)])[0]


def _ways(forms: _Forms, transformation: Any, tree: Any) -> List[Tuple[int, ...]]:
    """Of each leaf of a pytree of shapes, how its updates are made."""
    leaves = jax.tree_util.tree_leaves(tree)

    def steps(params: Any, grads: Any) -> Any:
        state, every = transformation.init(params), []
        for grad in grads:
            updates, state = transformation.update(grad, state, params)
            params = jax.tree.map(jax.numpy.add, params, updates)
            every.append(updates)
        return every

    jaxpr = jax.make_jaxpr(steps)(tree, [tree] * _STEPS)
    given = [forms.number(what, "own") for what in range(1 + _STEPS) for _ in leaves]
    found = forms.run(jaxpr, given)
    # Leaves are alike to each other so far: whether one goes by another's gradients is for the trials.
    return [tuple(found[step * len(leaves) + i] for step in range(_STEPS)) for i in range(len(leaves))]


def shaped(shape: Tuple[int, ...]) -> Any:
    """What is traced in place of an array."""
    return jax.ShapeDtypeStruct(shape, numpy.float32)  # type: ignore[no-untyped-call, unused-ignore]


def _sizes(shape: Tuple[int, ...]) -> Iterable[Tuple[int, ...]]:
    """Pieces that a rank may have of a parameter: of one element, some, all of it."""
    size = int(numpy.prod(shape, dtype=numpy.int64))
    return dict.fromkeys(((1,), (max(1, size // 2),), (size,)))


def check_shapes(transformation: Any, tree: Any, flat: bool, refuse: Callable[[str], NoReturn]) -> None:
    """That each leaf of a pytree of these shapes goes the way that it goes by itself, in its shape, or where `flat` as any flat piece."""
    forms = _Forms()
    named, structure = jax.tree_util.tree_flatten_with_path(tree)
    shapes = [tuple(numpy.shape(leaf)) for _, leaf in named]
    together = _ways(forms, transformation, jax.tree_util.tree_unflatten(structure, [shaped(shape) for shape in shapes]))
    alone: Dict[Tuple[int, ...], Tuple[int, ...]] = {}
    for (path, _), shape, way in zip(named, shapes, together):
        if 0 in shape:  # never updated
            continue
        for each in _sizes(shape) if flat else (shape,):
            if each not in alone:
                alone[each] = _ways(forms, transformation, shaped(each))[0]
            if alone[each] == way:
                continue
            what = f"{jax.tree_util.keystr(path) or 'params'} of shape {shape} goes another way"
            if flat:
                refuse(f"{what} than {'its one element' if each == (1,) else f'{each[0]} of its elements'} in one dimension. Masks, labels and "
                       "factors cannot go by sizes or shapes here, as each rank updates flat pieces of parameters")
            refuse(f"{what} in the pytree than by itself. Masks, labels and factors cannot go by names here, as each parameter is updated by itself")
