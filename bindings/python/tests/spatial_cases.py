# SPDX-License-Identifier: Apache-2.0
"""Programs of test_torch_spatial.py: one rank each."""
import copy
import io
import sys

import torch

import megadp
import megadp.torch as mt

nn = torch.nn


def layers():
    yield nn.Conv2d(2, 3, 3, padding=1), (9, 7)
    yield nn.Conv2d(2, 4, (5, 3), stride=(2, 1), padding=(2, 1), groups=2, bias=False), (11, 8)
    yield nn.Conv2d(2, 3, 3, dilation=2, padding=2), (10, 9)
    yield nn.Conv2d(2, 3, 4, stride=3), (26, 26)
    yield nn.Conv2d(2, 3, 7, padding=3), (8, 4)  # halos wider than a part
    yield nn.AvgPool2d(3, stride=2, padding=1), (9, 12)
    yield nn.MaxPool2d(3, stride=1, padding=1), (8, 9)
    yield nn.MaxPool2d(2), (12, 8)
    yield nn.Conv1d(2, 3, 3, padding=1), (13,)
    yield nn.MaxPool1d(3, 2, 1), (13,)
    yield nn.Conv3d(2, 2, 3, padding=1), (8, 3, 4)
    yield nn.AvgPool3d(2), (8, 4, 4)


def case_layers(comm):
    """Outputs and gradients against the layer on the whole image."""
    count = 0
    for number, (layer, sizes) in enumerate(layers()):
        for grid in {(comm.size,) + (1,) * (len(sizes) - 1), (1,) * (len(sizes) - 1) + (comm.size,), (2, comm.size // 2, 1)[:len(sizes)]}:
            if torch.tensor(grid).prod() != comm.size or any(size < ranks * 3 for size, ranks in zip(sizes, grid)):
                continue
            torch.manual_seed(number)
            layer = layer.double()
            for parameter in layer.parameters():
                nn.init.normal_(parameter)
            whole = torch.randn(2, 2, *sizes, dtype=torch.float64, requires_grad=True)
            parts = mt.spatial_parts(sizes, grid)
            spatial = mt.Spatial(layer, comm, grid, parts)
            own = (..., *mt.spatial_slices(parts, comm.rank))
            own_out = (..., *mt.spatial_slices(spatial.out_parts, comm.rank))
            wanted = layer(whole)
            weights = torch.randn_like(wanted)
            grads = torch.autograd.grad((wanted * weights).sum(), [whole, *layer.parameters()])
            x = whole.detach()[own].clone().requires_grad_()
            out = spatial(x)
            torch.testing.assert_close(out, wanted[own_out], rtol=1e-12, atol=1e-12)
            found = torch.autograd.grad((out * weights[own_out]).sum(), [x, *layer.parameters()])
            torch.testing.assert_close(found[0], grads[0][own], rtol=1e-11, atol=1e-11)
            for mine, all_of_it in zip(found[1:], grads[1:]):
                mine = mine.contiguous()
                comm.all_reduce(mine)
                torch.testing.assert_close(mine, all_of_it, rtol=1e-11, atol=1e-11)
            count += 1
    assert count == {2: 19, 4: 13}[comm.size], count
    print("layers done")


def case_padding(comm):
    pad = mt.HaloPad(comm, (comm.size,), 2, 1, "periodic")
    whole = torch.arange(3.0 * comm.size).requires_grad_()
    own = slice(3 * comm.rank, 3 * comm.rank + 3)
    x = whole.detach()[own].clone().requires_grad_()
    padded = pad(x)
    wanted = torch.cat([whole[-2:], whole, whole[:1]])[3 * comm.rank:3 * comm.rank + 6]
    assert torch.equal(padded, wanted), (padded, wanted)
    padded.square().sum().backward()
    total = torch.cat([whole[-2:], whole, whole[:1]])
    sum(total[3 * r:3 * r + 6].square().sum() for r in range(comm.size)).backward()
    assert torch.equal(x.grad, whole.grad[own]), (x.grad, whole.grad)
    print("padding done")


class Standardized(nn.Conv2d):
    """As in networks with group norms: it computes the weight that it uses."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, weight, self.bias, self.stride, self.padding)


class PadsItself(nn.Conv2d):
    def forward(self, x):
        return super().forward(nn.functional.pad(x, (1, 1, 1, 1)))


def case_own_layers(comm):
    """Layers that do more than torch's at a call: hooks, and a forward of their own."""
    torch.manual_seed(3)
    parts = mt.spatial_parts((8, 6), (comm.size, 1))
    own = (..., *mt.spatial_slices(parts, comm.rank))
    whole = torch.randn(2, 2, 8, 6)
    normed = nn.utils.spectral_norm(nn.Conv2d(2, 3, 3, padding=1)).eval()
    with torch.no_grad():
        normed.weight_orig.mul_(3).add_(0.5)  # the weight itself is made of it by a hook
    seen = []
    hooked = nn.MaxPool2d(3, stride=1, padding=1)
    hooked.register_forward_hook(lambda module, given, out: seen.append(tuple(out.shape)))
    for layer in (normed, Standardized(2, 3, 3, padding=1), hooked):
        found = mt.Spatial(layer, comm, (comm.size, 1), parts)(whole[own])
        torch.testing.assert_close(found, layer(whole)[own], rtol=1e-5, atol=1e-5)
        assert layer.padding in (1, (1, 1)), layer.padding
    assert seen == [(2, 2, 8 // comm.size, 6), (2, 2, 8, 6)], seen
    refused(f"PadsItself, has made an output of {((6, 6), (4, 6))[comm.rank]}, where this rank's part is {((4, 4), (2, 4))[comm.rank]}",
            lambda: mt.Spatial(PadsItself(2, 3, 3), comm, (2, 1), [[4, 4], [6]])(whole[own]))
    print("own_layers done")


def case_copied(comm):
    """A copy, as of a module whose moving average is kept, uses the same ranks, whether it was used before or not."""
    x = torch.randn(1, 1, 4)
    for module in (mt.HaloPad(comm, (2,), 1, 1, ["periodic"]), mt.Spatial(nn.Conv1d(1, 1, 3, padding=1), comm, (2,), ((4, 4),))):
        for _ in range(2):
            copied = copy.deepcopy(module)
            assert torch.equal(copied(x), module(x))
        try:
            torch.save(module, io.BytesIO())
        except megadp.MegaDPError as error:
            assert "cannot be pickled" in str(error), error
        else:
            raise AssertionError("it was pickled")
    print("copied done")


def refused(words, call):
    try:
        call()
    except megadp.InvalidError as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)


def case_refused(comm):
    def fails(words, *arguments):
        refused(words, lambda: mt.Spatial(*arguments))

    fails("layer is a Linear", nn.Linear(2, 2), comm, (2, 1), ((4, 4), (8,)))
    fails("padding (1,) of mode 'reflect'", nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect"), comm, (2,), ((4, 4),))
    fails("ceil_mode", nn.MaxPool1d(3, ceil_mode=True), comm, (2,), ((4, 4),))
    fails("count_include_pad=False", nn.AvgPool1d(3, padding=1, count_include_pad=False), comm, (2,), ((4, 4),))
    fails("as many parts as the grid has ranks", nn.Conv1d(1, 1, 3), comm, (2,), ((4, 4, 4),))
    fails("the output's parts would be [[1, 0]]", nn.MaxPool1d(8), comm, (2,), ((8, 1),))
    layer = mt.Spatial(nn.Conv1d(1, 1, 3, padding=1), comm, (2,), ((4, 3),))
    refused("x has shape (1, 1, 5); its last dimensions must be this rank's part", lambda: layer(torch.zeros(1, 1, 5)))
    refused("x has dtype torch.int64; it must be float32, bfloat16, float16 or float64",
            lambda: layer(torch.zeros(1, 1, (4, 3)[comm.rank], dtype=torch.int64)))
    print("refused done")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with megadp.Comm() as world:
        globals()[f"case_{sys.argv[1]}"](world)
