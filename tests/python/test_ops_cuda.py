"""The operators on a GPU: bfloat16 against the float64 reference on the CPU. The worst row, its error taken
relative to the row's largest value, may be twice as far off as the worst row of the same formula in PyTorch in
bfloat16, plus one bfloat16 step; and the root mean square of the error likewise."""

import pytest
import torch

test_ops = pytest.importorskip("test_ops")
from test_ops import CASES, as_tuple, ops, rows  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)


def moved(args, kind):
    """The arguments on the GPU (activations in bfloat16), or their values in float64 on the CPU."""

    def move(a):
        if not torch.is_tensor(a):
            return a
        if not a.is_floating_point():
            return a.cuda() if kind == "gpu" else a
        low = a.detach().bfloat16()
        x = low.cuda() if kind == "gpu" else low.double()
        return x.requires_grad_(a.requires_grad)

    return [move(a) for a in args]


def run(op, args, weight=None):
    out = as_tuple(op(*args))
    if weight is None:
        weight = [torch.randn(o.shape, generator=torch.Generator().manual_seed(9)) for o in out]
    inputs = [a for a in args if torch.is_tensor(a) and a.requires_grad]
    total = sum((o * w.to(o)).sum() for o, w in zip(out, weight))
    return [*out, *torch.autograd.grad(total, inputs)], weight


def by_row(x):
    x = x.detach().double().cpu()
    return x.reshape(len(x) if x.dim() else 1, -1)


@pytest.mark.parametrize("name,op,reference,args", CASES, ids=[c[0] for c in CASES])
def test_bfloat16_is_at_most_twice_as_far_off_as_pytorch(name, op, reference, args):
    exact, weight = run(reference, moved(args, "exact"))
    got, _ = run(op, moved(args, "gpu"), weight)
    low = [a.bfloat16() if torch.is_tensor(a) and a.is_floating_point() else a for a in args]
    low = [a.detach().requires_grad_(b.requires_grad) if torch.is_tensor(a) else a for a, b in zip(low, args)]
    plain, _ = run(reference, low, weight)
    used = 0.0
    for g, p, e in zip(got, plain, exact):
        assert g.shape == e.shape and g.is_cuda
        if e.numel() == 0:
            continue
        g, p, e = by_row(g), by_row(p), by_row(e)
        # A row that cancels (few keys, near-certain classes) is measured by the tensor's typical size.
        size = e.abs().amax(1, keepdim=True).clamp_min(e.square().mean().sqrt()) + 1e-30
        for measure in (torch.max, lambda x: x.square().mean().sqrt()):
            ours, theirs = (measure(((x - e) / size).abs()).item() for x in (g, p))
            used = max(used, ours / (2 * theirs + 2.0**-8))
    print(f"{name}: {100 * used:.0f} % of the tolerance")
    assert used < 1


@pytest.mark.parametrize("e", [8, 64, 72, 200])  # other widths take other kernels, which round logits to 16 bits
@pytest.mark.parametrize("loss", ["full", "sampled"])
def test_a_table_in_float32_beside_bfloat16_rows(loss, e):
    """Gradients come in each input's type; items are rounded to the rows' type first, as here. What is
    left are the exponentials' rounding and, for d_h, its own, twice for a sampled loss: 3 x 2^-9, doubled at most."""
    n, v = 300, 700
    g = torch.Generator().manual_seed(e)
    h, positive, items = (torch.randn(k, e, generator=g) / e**0.25 for k in (n, n, v))
    target, ids = torch.arange(n) * 7919 % v, torch.arange(v) - (torch.arange(v) % 10 == 5).long()
    ids[::3] += 1 << 32  # the low halves agree with others'
    row = ids[target] + (torch.arange(n) % 4 == 1).long() * (1 << 32)

    def run(h, positive, items, target, ids, row):
        x = [a.detach().requires_grad_() for a in (h, positive, items)]
        if loss == "full":
            out, x = ops.full_softmax(x[0], x[2], target, 0.5, False), [x[0], x[2]]
        else:
            out = ops.sampled_softmax(*x, row, ids, None, None, 0.5, False, True)
        return out, torch.autograd.grad(out, x)

    low = [h.bfloat16().float(), positive, items.bfloat16().float()]
    want, want_grad = run(*low, target, ids, row)
    gpu = [h.bfloat16().cuda(), positive.cuda(), items.cuda(), target.cuda(), ids.cuda(), row.cuda()]
    got, got_grad = run(*gpu)
    assert abs(got.item() - want.item()) < 2.0**-8 * abs(want.item())
    for a, b, x in zip(got_grad, want_grad, gpu[:1] + gpu[3 - len(got_grad) + 1 : 3]):
        assert a.dtype == x.dtype
        worst = ((a.cpu().float() - b).abs().amax(1) / b.abs().amax(1).clamp_min(b.abs().mean())).max().item()
        print(f"{100 * worst / (3 * 2.0**-8):.0f} % of the tolerance")
        assert worst < 3 * 2.0**-8, worst


def test_dropout_masks_are_those_of_the_cpu():
    x, key = torch.ones(50, 100), (0.3, 7, 11, 2)
    on_cpu = ops.dropout(x, *key, *rows(50))
    on_gpu = ops.dropout(x.cuda(), *key, *(r.cuda() for r in rows(50)))
    assert torch.equal(on_gpu.cpu(), on_cpu)


def test_two_runs_give_the_same_bits():
    for name, op, _, args in CASES:
        if name.startswith("attention"):
            continue  # libtorch's FlashAttention-2 adds d_q with atomics
        first, weight = run(op, moved(args, "gpu"))
        second, _ = run(op, moved(args, "gpu"), weight)
        assert all(torch.equal(a, b) for a, b in zip(first, second)), name


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_operators_run_where_their_tensors_are_whatever_device_is_current():
    results = []
    for device in ("cuda:0", "cuda:1"):
        x = torch.randn(300, 2, 64, generator=torch.Generator().manual_seed(5)).bfloat16().to(device).requires_grad_()
        o = torch.tensor([0, 100, 300], device=device)
        with torch.cuda.device(0):
            y = ops.jagged_attention(x, x, x, o, o, 200, 200, True, 0.125)
            (dx,) = torch.autograd.grad(y.sum(), x)
        results.append((y.cpu(), dx.cpu()))
    assert all(torch.equal(a, b) for a, b in zip(*results))
