# SPDX-License-Identifier: Apache-2.0
"""Programs of test_torch_spatial.py: one rank each."""
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
    print(f"layers done, {count} of them")


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


def case_refused(comm):
    def fails(words, *arguments):
        try:
            mt.Spatial(*arguments)
        except megadp.InvalidError as error:
            assert words in str(error), error
        else:
            raise AssertionError(words)

    fails("layer is a Linear", nn.Linear(2, 2), comm, (2, 1), ((4, 4), (8,)))
    fails("padding (1,) of mode 'reflect'", nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect"), comm, (2,), ((4, 4),))
    fails("ceil_mode", nn.MaxPool1d(3, ceil_mode=True), comm, (2,), ((4, 4),))
    fails("count_include_pad=False", nn.AvgPool1d(3, padding=1, count_include_pad=False), comm, (2,), ((4, 4),))
    fails("as many parts as the grid has ranks", nn.Conv1d(1, 1, 3), comm, (2,), ((4, 4, 4),))
    fails("the output's parts would be [[1, 0]]", nn.MaxPool1d(8), comm, (2,), ((8, 1),))
    layer = mt.Spatial(nn.Conv1d(1, 1, 3, padding=1), comm, (2,), ((4, 3),))
    try:
        layer(torch.zeros(1, 1, 5))
    except megadp.InvalidError as error:
        assert "x has shape (1, 1, 5); its last dimensions must be this rank's part" in str(error), error
    print("refused done")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with megadp.Comm() as world:
        globals()[f"case_{sys.argv[1]}"](world)
