# SPDX-License-Identifier: Apache-2.0
"""The course of a step, from the gradients' hooks to the optimizer: what has come, what may be read or changed, what is to be said where a
script does something else.

Gradients are taken by post-accumulate hooks while backward goes on. A gradient that autograd has made anew is copied into its slot; what is
accumulated later goes into the slot directly, since .grad is a view of it then. With zero_2 there is no slot to be a view of: each is copied,
in every pass, and .grad stands in for what this rank keeps of the sum.
"""
import math
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.utils.dlpack import from_dlpack

from ._buffer import Buffer
from ._comm import Comm
from ._errors import MegaDPError, Status, invalid
from ._tensor import Tensor
from ._torch_grads import Grad, instead, lazy_zeros, make, refuse_change, refuse_values, stand_in_of
from ._torch_placement import Registered

_ELEMENTS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64, "int64": torch.int64,
             "uint8": torch.uint8}
_CHUNK = 1 << 18  # elements that are widened at a time
# Phases: the step's gradients are used up or not there yet; passes inside no_sync have brought some; the last pass has; they are reduced.
USED, ADDING, LAST, REDUCED = range(4)
_TWICE = ("A DistributedDataParallel around this model (accelerate's prepare(model) makes one) changes gradients too: leave it away, since they are "
          "averaged here")


def as_tensor(view: Tensor) -> torch.Tensor:
    """A torch tensor on library memory, which it keeps alive."""
    on_host = view.device == "cpu"
    if on_host and view.size == 0:
        return torch.empty(view.shape, dtype=_ELEMENTS[view.dtype], device="cpu")
    try:
        taken: torch.Tensor = from_dlpack(view)
        return taken
    except BufferError:  # before 2.9 torch wants old capsules, which numpy makes
        if not on_host:
            raise
    # The last choice: until 2.8 such a tensor that outlives the interpreter waits for it for ever.
    return torch.frombuffer(view.memoryview, dtype=_ELEMENTS[view.dtype]).view(view.shape)


def stream_of(tensor: torch.Tensor) -> int:
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.device.type == "cuda" else 0


def _greater(a: float, b: float) -> float:
    return b if b > a or math.isnan(b) else a  # NaN wins


class Gradients:
    """The gradients of the registered parameters. params: by number. comm: over which shards add up; None where the world is cut in other
    ways too, so that only the library knows what counts once. whole: every rank has all of each reduced gradient. pooled: zero_2.
    instances: how many of these ranks have each shard."""

    def __init__(self, storage: Buffer, names: List[str], registered: Registered, params: Dict[int, torch.nn.Parameter], comm: Optional[Comm],
                 whole: bool, pooled: bool, instances: int) -> None:
        self._registered = registered
        self.storage, self.names, self.params, self.whole, self.pooled = storage, names, params, whole, pooled
        self._comm, self._instances = comm, instances
        self.phase = USED
        self.in_no_sync = False
        self._last = True          # whether the pass whose forward came last is the step's last
        self._by_forward = False   # the wrapper's forward has said so in this step; else backward says it: the module was called itself
        self._new_pass = True
        self._backward = False     # under way
        self._told = False         # the library knows of several passes
        self._anew = False         # the library must be told that a step begins
        count = len(names)
        self._arrived = bytearray(count)  # in this pass
        self._held = bytearray(count)     # a gradient of this step is in the slot
        self._clean = bytearray(b"\1" * count)  # the slot was zeroed
        self._lifted = bytearray(count)   # a stand-in was taken out of the way of autograd
        self._lifting = False             # and is put back when backward ends
        self._coming = bytearray(count)   # autograd has a gradient that its accumulation is to bring; only known where we are told before it
        self._norms: Dict[float, torch.Tensor] = {}
        self._slots: Dict[int, torch.Tensor] = {}
        self._views: Dict[int, Grad] = {}
        self._versions = [0] * count
        self._owned: Dict[int, List[Tuple[int, int]]] = {i: [] for i in params}
        for piece in storage.owned():
            self._owned[piece.param].append((piece.param_begin, piece.param_begin + piece.end - piece.begin))
        shared_zeros = lazy_zeros(max((p.nbytes for p in params.values() if p.device.type == "cpu"), default=0))
        with torch.no_grad():
            for i, p in params.items():
                # Torch wants gradients of the parameter's type: where the library keeps wider ones, or none, .grad is a stand-in.
                stand_in = stand_in_of(p, shared_zeros)
                self._slots[i] = slot = stand_in if pooled else as_tensor(storage.grad(i))
                plain = slot if not self._stands_in(i) else stand_in
                self._views[i] = make(plain, self, i)
                self._versions[i] = slot._version
                p.grad = None

    def _stands_in(self, number: int) -> bool:
        return self.pooled or self._slots[number].dtype != self.params[number].dtype

    def _reduced(self, number: int) -> torch.Tensor:
        """What this rank has of a reduced gradient, and may write: all of it or, flat, what it owns."""
        return as_tensor(self.storage.owned_grad(number)) if self.pooled else self._slots[number]

    def hook(self) -> None:
        me = weakref.ref(self)  # a parameter's hooks would keep us, and we keep the parameter

        def arrived(number: int) -> Any:
            def hook(p: torch.nn.Parameter) -> None:
                home = me()
                if home is None or home.storage.closed:
                    return
                if p is not home.params[number]:  # torch gives each hook what the one before has returned
                    raise invalid(f"a hook that register_post_accumulate_grad_hook has put on {home.names[number]!r} before the module was "
                                  "wrapped has returned a value; such hooks return None, and change p.grad in place")
                home._arrive(number, p)

            return hook

        def lifted(number: int, of: "weakref.ref[torch.nn.Parameter]") -> Any:
            def hook(grad: Optional[torch.Tensor]) -> None:
                home, p = me(), of()
                if home is None or p is None:
                    return
                home._coming[number] = grad is not None
                if home._stands_in(number) and p.grad is home._views[number]:
                    p.grad = None  # autograd would add to it
                    home._lifted[number] = 1
                    home._put_back_later()

            return hook

        for i, p in self.params.items():
            frozen = not p.requires_grad
            p.requires_grad_(True)  # torch registers no hooks otherwise
            others = bool(p._post_accumulate_grad_hooks)  # type: ignore[attr-defined, unused-ignore]
            p.register_post_accumulate_grad_hook(arrived(i))  # type: ignore[no-untyped-call, unused-ignore]
            if self._stands_in(i) or others:
                p.register_hook(lifted(i, weakref.ref(p)))  # type: ignore[no-untyped-call, unused-ignore]
            p.requires_grad_(not frozen)

    def _when_backward_ends(self, then: Callable[["Gradients"], None]) -> None:
        me = weakref.ref(self)

        def ended() -> None:
            home = me()
            if home is not None:
                then(home)

        torch.autograd.Variable._execution_engine.queue_callback(ended)  # type: ignore[attr-defined, unused-ignore]

    def _put_back_later(self) -> None:
        if self._lifting:
            return
        self._lifting = True
        self._when_backward_ends(Gradients._put_back)

    def _put_back(self) -> None:
        """What was lifted, and nothing has come: torch.autograd.grad has been asked for it."""
        self._lifting = False
        for i, p in self.params.items():
            if self._lifted[i] and p.grad is None:
                p.grad, self._lifted[i] = self._views[i], 0

    # The way there

    def forward(self, last: bool) -> None:
        """A pass begins whose backward is (not) the step's last."""
        self._last, self._by_forward, self._new_pass, self._backward = last, True, True, False

    def _arrive(self, number: int, p: torch.nn.Parameter) -> None:
        view, grad = self._views[number], p.grad
        if not self._backward:
            self._backward_begins()
        self._registered.check_memory(number, p)
        if grad is None or (grad is view and self._slots[number]._version == self._versions[number]):
            self._arrive_without(number, p)
            return
        if grad is not view:
            self._check_kind(number, grad)
        dropped = bool(self._clean[number]) or not (grad is view or self._lifted[number])
        if self.phase == REDUCED and dropped:  # zero_grad of the wrapped module, after a step that was not taken
            self._begin_anew()
        if self.phase == REDUCED or (self.phase == LAST and (self._arrived[number] or not self._last)):
            raise self._again(number, given_up=grad is not view and not self._lifted[number])
        if self.phase == USED or (self.phase == ADDING and (self._new_pass or self._arrived[number])):
            self._begin_pass()
        if (grad is view or self._lifted[number]) and not (self._clean[number] or self._held[number]):
            raise MegaDPError(Status.STATE, f"backward adds to the gradient that the last step has used up, of {self.names[number]!r}: "
                              "call optimizer.zero_grad() between step() and the next backward(), which may also be that of another "
                              "model's loss that goes through this one", param=number)
        if grad is view:
            self.storage.ready(number, stream=stream_of(p))
        else:
            if self._held[number] and not self._lifted[number]:
                raise MegaDPError(Status.STATE, f"the gradient of {self.names[number]!r} was dropped in the middle of a step: zero_grad of "
                                  "the wrapper or the optimizer throws gradients away", param=number)
            self.storage.put(number, grad, stream=stream_of(p))
            p.grad = view
        self._lifted[number] = self._clean[number] = 0
        self._arrived[number] = self._held[number] = 1
        self._versions[number] = self._slots[number]._version

    def _arrive_without(self, number: int, p: torch.nn.Parameter) -> None:
        """A function's backward has returned None, and torch calls hooks all the same. The parameter has no gradient in this pass; what is in
        the slot from earlier ones stays."""
        if p.grad is None and self._coming[number]:
            raise MegaDPError(Status.STATE, f"a hook that register_post_accumulate_grad_hook has put on {self.names[number]!r} before the module "
                              "was wrapped has set p.grad to None, as optimizers that step in backward do: the ranks' gradients would not meet. "
                              "Leave p.grad there, and take the step by a sharded optimizer", param=number)
        if self.phase == USED or (self.phase == ADDING and self._new_pass):
            self._begin_pass()
        if self._lifted[number]:
            p.grad, self._lifted[number] = self._views[number], 0

    def _check_kind(self, number: int, grad: Any) -> None:
        if grad.layout is not torch.strided:
            raise MegaDPError(Status.UNSUPPORTED, f"backward has brought a gradient of {self.names[number]!r} whose layout is {grad.layout}; "
                              "gradients must be dense: make an Embedding with sparse=False", param=number)
        if grad.requires_grad:
            raise MegaDPError(Status.UNSUPPORTED, f"backward(create_graph=True) has brought a gradient of {self.names[number]!r} that is part of a "
                              "graph; such graphs are not kept. Where a loss has gradients in it, torch.autograd.grad(..., create_graph=True) "
                              "gives them, and backward() of that loss comes without create_graph", param=number)

    def _again(self, number: int, given_up: bool) -> MegaDPError:
        if given_up:
            return MegaDPError(Status.STATE, "gradients of the backward() before this one were thrown away by p.grad = None or by zero_grad() of the "
                               "wrapped module, and are being reduced: to give up a batch, call zero_grad() of the optimizer or the wrapper on all "
                               f"ranks (second gradient of {self.names[number]!r})", param=number)
        return MegaDPError(Status.STATE, "take the step before the next backward(), or, to accumulate gradients, put the forward and backward of all "
                           "batches but a step's last into `with model.no_sync():`; optimizer.zero_grad() on all ranks throws gradients away. "
                           f"This second backward() has brought a gradient of {self.names[number]!r} again: losses of one batch are added before one "
                           "backward(); a layer that is used in several checkpoints wants torch.utils.checkpoint with use_reentrant=False; after "
                           "the step of another optimizer than megadp.torch's call model.stepped()", param=number)

    def _begin_pass(self) -> None:
        if not self._last or self._told or self._anew:
            self._told = True  # before it is: a signal's handler may raise behind the call
            self.storage.begin_microbatch(self._last)
        self.phase = LAST if self._last else ADDING
        self._anew = self._new_pass = False
        self._arrived = bytearray(len(self.names))

    def _backward_begins(self) -> None:
        self._backward = True
        if not self._by_forward and self._last == self.in_no_sync:
            self._last, self._new_pass = not self.in_no_sync, True
        self._when_backward_ends(Gradients._backward_ends)

    def _backward_ends(self) -> None:
        self._backward = False
        if self.phase == LAST:
            self._give_views(zeroed=True)  # torch.utils.checkpoint's backward in backward ends too: more may come, and be added to them

    def _give_views(self, zeroed: bool = False) -> None:
        """Another rank may have used what this one has not: lists of gradients must be alike. zeroed: without what an earlier step left there."""
        for i, p in self.params.items():
            if p.grad is None and p.requires_grad and not self._held[i]:
                if zeroed and not self._clean[i]:
                    self._zero(i)
                p.grad = self._views[i]

    def _zero(self, number: int) -> None:
        if not self._stands_in(number):  # what stands in is taken away before more is added
            self.storage.wait(number)  # the last step may still be reading
            self._slots[number].zero_()
            self._versions[number] = self._slots[number]._version
        self._clean[number] = 1

    def finish(self, needed: bool = True, thrown_away: bool = False) -> None:
        """Ends backward: nothing more comes, gradients are reduced. Collective. needed: it is an error if check_finite has found one that is
        not finite; not so for who looks for that himself. thrown_away: what has come is of no interest, so that a gradient which the library
        has already is no error."""
        if self.phase == REDUCED:
            return
        if self._backward and torch._C._current_graph_task_id() == -1:
            raise MegaDPError(Status.STATE, "gradients are looked at or used after a backward() that has raised, and they are not whole: "
                              "optimizer.zero_grad() on all ranks throws them away")
        if self._backward:
            raise MegaDPError(Status.STATE, "gradients are looked at or used while backward is under way; wait until backward() has returned")
        self.check()
        before, begins = self.phase, self.phase == ADDING or self._anew
        if begins:  # all passes were inside no_sync, or this rank has had none
            self.storage.begin_microbatch(True)
            self._anew, self._arrived = False, bytearray(len(self.names))
        self.phase = LAST  # also where no pass has been; what follows may be interrupted, or refused, and is gone on with then
        for i in self.params:
            if self._arrived[i]:
                continue
            try:
                self._skip(i, thrown_away)
            except MegaDPError:
                if not any(self._arrived):  # nothing has been done
                    self.phase, self._anew = before, begins
                raise
        self._norms.clear()
        try:
            self.storage.sync()
        except MegaDPError as error:
            if error.code == Status.STATE and error.rank is None:  # another thread's call is under way: nothing has been done
                raise
            if needed or error.code != Status.NUMERIC:
                self._begin_anew()
                raise self.explained(error) from None
        self.phase, self._clean = REDUCED, bytearray(len(self.names))
        self._give_views()

    def _skip(self, number: int, thrown_away: bool) -> None:
        try:
            self.storage.skip(number)
        except MegaDPError as error:
            # A signal's handler has raised when its gradient had been handed over, and before that was noted here.
            if error.code != Status.STATE or error.param is None or not thrown_away:
                raise
        self._arrived[number] = 1

    def explained(self, error: MegaDPError) -> MegaDPError:
        if error.code not in (Status.PEER, Status.DESYNC, Status.TIMEOUT) or "come apart" in error.text:
            return error
        if error.code == Status.DESYNC and self.pooled:
            error.text += ". With zero_2 all ranks make as many passes inside no_sync"
        error.text += (". If the data of that rank has ended earlier: give all ranks the same number of batches (DistributedSampler), or let "
                       "one without data call model.sync() in place of forward and backward as long as others go on. What is called on all ranks or "
                       "on none: zero_grad() after a backward() that no step has used, norms and values of .grad, the optimizer's state_dict()")
        error.args = (error.args[0], error.text, *error.args[2:])
        return error

    def check(self) -> None:
        """That gradients are what came. Raises MegaDPError: STATE, naming the parameter."""
        for i, p in self.params.items():
            if not self._held[i]:
                if p.grad is not None and p.grad is not self._views[i]:
                    raise MegaDPError(Status.STATE, f".grad of {self.names[i]!r} was assigned, and backward has brought none: a step takes what backward "
                                      "brings, and would leave this parameter as it is. (p * grad).sum() of all such parameters, added up, has these "
                                      "gradients in its backward(). (torch.distributed.checkpoint.state_dict does it, and has set the groups' lr to "
                                      "0.0: use megadp.torch.save_checkpoint, or state_dict() of model and optimizer)", param=i)
                continue
            if p.grad is not self._views[i]:
                raise MegaDPError(Status.STATE, f".grad of {self.names[i]!r} was replaced between backward and step; change gradients in "
                                  "place (clip_grad_norm_, GradScaler, p.grad.mul_), zero_grad() of the optimizer throws them away, and "
                                  f"requires_grad_(False) before the forward leaves a parameter out of a step. {_TWICE}", param=i)
            if self._slots[i]._version != self._versions[i]:
                raise MegaDPError(Status.STATE, f"the gradient of {self.names[i]!r} was changed after it had come, while it was being "
                                  "reduced: clip by the optimizer's max_grad_norm or torch.nn.utils.clip_grad_norm_, scale by "
                                  "torch.amp.GradScaler; where all of it is here (sharding='zero_0'), write to p.grad itself, not to a view of it. "
                                  f"{_TWICE}", param=i)

    def used(self, by_library: bool) -> None:
        """The step has been taken."""
        if self.phase == REDUCED and not by_library:
            self._anew = True
        for i, p in self.params.items():
            if not self._held[i] and p.grad is self._views[i]:
                p.grad = None  # it was there for lists to be alike; the next backward adds nothing to it
        self.phase, self._clean = USED, bytearray(len(self.names))
        self._forget()
        self._told = self._backward = False

    def left_over(self) -> Optional[int]:
        """A parameter whose .grad the last step has used up, if there is nothing newer for a step."""
        if self.phase != USED:
            return None
        return next((i for i, p in self.params.items() if p.grad is self._views[i] and not self._clean[i]), None)

    def _begin_anew(self) -> None:
        self.phase, self._anew = USED, True
        self._forget()

    def _forget(self) -> None:
        count = len(self.names)
        self._arrived, self._held = bytearray(count), bytearray(count)
        self._new_pass, self._by_forward = True, False
        self._norms.clear()

    # Away with them

    def drop(self, set_to_none: bool) -> None:
        """zero_grad. Local, unless the last pass (with zero_2: any) has brought gradients that no step has used: their reduction is brought to its end."""
        self._backward = self._lifting = False
        self._lifted = bytearray(len(self.names))  # by a backward that has raised
        if self.phase == LAST or (self.pooled and self.phase == ADDING):
            for i, p in self.params.items():  # whatever was done to them is of no interest any more
                self._registered.check_memory(i, p)  # one that was converted takes no such gradient
                p.grad, self._versions[i] = self._views[i], self._slots[i]._version
            self.finish(needed=False, thrown_away=True)
        if self.phase == REDUCED:
            self._begin_anew()
        elif self.phase == ADDING:
            self.storage.zero_grad()
            self._begin_anew()
        else:
            self._forget()  # a signal's handler may have raised before the step's end did
        if not set_to_none:
            self.storage.zero_grad()
            self._clean = bytearray(b"\1" * len(self.names))
        with torch._C.DisableTorchFunctionSubclass():  # which parameters have while they are awaited; nobody looks at values here
            for i, p in self.params.items():
                p.grad = None if set_to_none or self._stands_in(i) else self._views[i]
                self._versions[i] = self._slots[i]._version

    def clear(self, numbers: List[int]) -> None:
        """p.grad.zero_(), one by one: what module.zero_grad(set_to_none=False) does."""
        if self.pooled and self.phase == ADDING:
            raise MegaDPError(Status.UNSUPPORTED, f"zero_ of the gradient of {self.names[numbers[0]]!r} after a pass in no_sync: with zero_2 it "
                              "is added up already; zero_grad() of the optimizer throws all gradients away", param=numbers[0])
        if self.phase == LAST:
            self.finish(needed=False, thrown_away=True)
        for i in numbers:
            self.storage.wait(i)  # the last step may still be reading
            if not self.pooled or self.phase == REDUCED:
                self._reduced(i).zero_()
            self._clean[i] = 1
            self._versions[i] = self._slots[i]._version
        if self.phase == REDUCED:
            self.written(numbers)

    # Looking, and changing

    def local(self) -> bool:
        """Whether gradients are this rank's own sums still, to be treated as such."""
        return (self.phase == ADDING and self.in_no_sync) or self.phase == USED

    def values(self, number: int, what: str) -> torch.Tensor:
        name = self.names[number]
        if self._backward:
            raise MegaDPError(Status.STATE, f"{what} reads the gradient of {name!r} while backward is under way, or after one that has "
                              "raised: " + instead(what, "wait until backward() has returned; after an error optimizer.zero_grad() on all ranks "
                                                   "throws gradients away"), param=number)
        if self.phase == USED and not self._clean[number] and not self.whole:
            raise MegaDPError(Status.STATE, f"{what} reads the gradient of {name!r} after the step has used it up: " +
                              instead(what, "read norms between backward and step; values, then and after it, need sharding='zero_0'"), param=number)
        if not self.local():
            if not self.whole:
                raise refuse_values(name, what)
            self.finish()
        elif self.pooled:
            raise refuse_values(name, what)
        slot = self._reduced(number).view(self.params[number].shape)
        view = self._views[number]
        with torch._C.DisableTorchFunctionSubclass():
            dtype = view.dtype
        return slot if slot.dtype == dtype else slot.to(dtype)

    def norms(self, numbers: List[int], degree: float) -> List[float]:
        """Of each gradient, over all ranks. Collective between the end of backward and the step."""
        if self.local():
            return [float(torch.linalg.vector_norm(self.values(i, "a norm"), degree, dtype=torch.float64)) for i in numbers]
        self.finish()
        if self._comm is None:
            if degree != 2:
                raise MegaDPError(Status.UNSUPPORTED, f"norms of degree {degree} are not offered on a grid with tensor, expert or pipeline "
                                  "parallel groups; norm_type must be 2")
            return [float(self.storage.grad_norm([i])) for i in numbers]
        if not degree > 0:
            raise MegaDPError(Status.UNSUPPORTED, f"norms of degree {degree} are not offered; norm_type must be above 0")
        if degree not in self._norms:
            self._norms[degree] = self._all_norms(degree)
        found = self._norms[degree]
        return [float(found[i]) for i in numbers]

    def _all_norms(self, degree: float) -> torch.Tensor:
        """One collective for all of them, since clip_grad_norm_ asks one after another."""
        greatest = math.isinf(degree)
        powers = [0.0] * len(self.names)
        for i in self._slots:
            flat = self._reduced(i).view(-1)
            for begin, end in [(0, flat.numel())] if self.pooled else self._owned[i]:
                for at in range(begin, end, _CHUNK):
                    of_part = float(torch.linalg.vector_norm(flat[at:min(end, at + _CHUNK)], degree, dtype=torch.float64))
                    powers[i] = _greater(powers[i], of_part) if greatest else powers[i] + of_part**degree
        found = torch.tensor(powers, dtype=torch.float64, device="cpu")
        if self._comm is not None and self._comm.size > 1 and not self.whole:
            self._comm.all_reduce(found, op="max" if greatest else "sum")
            found = found if greatest else found / self._instances
        return found if greatest else found.pow(1 / degree)

    def finite(self, numbers: List[int]) -> bool:
        if self._comm is None:
            return math.isfinite(self.storage.grad_norm(numbers))
        return all(map(math.isfinite, self.norms(numbers, 2.0)))

    def scale(self, numbers: List[int], factor: float) -> None:
        """Multiplies reduced gradients. Local."""
        if not math.isfinite(factor):
            if self._norms and not all(bool(torch.isfinite(norms).all()) for norms in self._norms.values()):
                return  # made from a norm that was not finite: the step says which gradient
            raise invalid(f"the gradient of {self.names[numbers[0]]!r} is to be multiplied by {factor}; the factor must be finite (one that comes "
                          "from a norm over several models is not where a gradient of one of them is not)")
        if factor == 1:
            return
        self.storage.scale_grads(factor, numbers, stream=stream_of(self.params[numbers[0]]))
        for norms in self._norms.values():
            norms[numbers] *= abs(factor)

    def writable(self, numbers: List[int], what: str, by_element: bool) -> List[torch.Tensor]:
        if not self.local():
            if not (by_element or self.whole):
                raise refuse_change(self.names[numbers[0]], what)
            self.finish()
        elif self.pooled:
            raise refuse_values(self.names[numbers[0]], what)
        return [self._reduced(i) for i in numbers]

    def written(self, numbers: List[int]) -> None:
        for i in numbers:
            self._versions[i] = self._slots[i]._version
        self._norms.clear()
        if self.phase == REDUCED:
            self.storage.grads_changed(stream=stream_of(self.params[numbers[0]]))
