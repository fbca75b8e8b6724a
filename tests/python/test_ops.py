"""The operators as Python users meet them: torch.ops.tautline.* against PyTorch's formulas in float64,
torch.library.opcheck, and torch.compile without a graph break.

The library's path comes from TAUTLINE_OPS (ctest sets it)."""

import math
import os

import pytest
import torch
import torch.nn.functional as F

if "TAUTLINE_OPS" not in os.environ:
    pytest.skip("TAUTLINE_OPS names no libtautline_ops.so", allow_module_level=True)
torch.ops.load_library(os.environ["TAUTLINE_OPS"])
ops = torch.ops.tautline
EPS = 2.0**-23


def randn(*shape, grad=False, seed=[0]):
    seed[0] += 1
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed[0]))
    return x.requires_grad_(grad)


def offsets(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def rows(n):
    return torch.arange(n) // 3, torch.arange(n) % 3  # sample, position


def attention_reference(q, k, v, q_offsets, k_offsets, causal, scale):
    out = []
    for b in range(len(q_offsets) - 1):
        qs, ks, vs = (
            x[o[b] : o[b + 1]].transpose(0, 1)
            for x, o in ((q, q_offsets), (k, k_offsets), (v, k_offsets))
        )
        score = qs @ ks.transpose(1, 2) * scale
        if causal:
            nq, nk = score.shape[1:]
            hidden = torch.arange(nk) > torch.arange(nq)[:, None] + nk - nq
            score = score.masked_fill(hidden, -math.inf)
        out.append((score.softmax(-1).nan_to_num() @ vs).transpose(0, 1))
    return torch.cat(out)


def rope_reference(qkv, position, base):
    half = qkv.shape[-1] // 2
    # The angle is a product of two float32 by definition, as in PyTorch's usual code.
    frequency = (base ** (-torch.arange(half, dtype=torch.float64) / half)).float()
    angle = (position[:, None].float() * frequency).double()
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    a, b = qkv[:, :2, :, :half], qkv[:, :2, :, half:]
    turned = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((turned, qkv[:, 2:]), 1)


def rms_reference(x, w, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * w


def sampled_reference(h, p, n, target, negative, lqp, lqn, temperature, normalize, remove):
    if normalize:
        h, p, n = (F.normalize(x, dim=-1) for x in (h, p, n))
    own = (h * p).sum(-1) / temperature - (0 if lqp is None else lqp)
    other = h @ n.T / temperature - (0 if lqn is None else lqn)
    if remove:
        other = other.masked_fill(target[:, None] == negative, -math.inf)
    both = torch.cat((own[:, None], other), 1)
    return F.cross_entropy(both, torch.zeros_like(target), reduction="sum")


def full_reference(h, e, target, temperature, normalize, bias=None, column=None, first=None, last=None):
    if normalize:
        h, e = F.normalize(h, dim=-1), F.normalize(e, dim=-1)
    score = h @ e.T
    if bias is not None:
        known = torch.zeros_like(score)
        for n, (a, b) in enumerate(zip(first, last)):
            known[n, column[a:b]] = 1
        score = score + bias * known
    return F.cross_entropy(score / temperature, target, reduction="sum")


def layer_reference(x, w, b, eps):
    return F.layer_norm(x, w.shape, w, b, eps)


def swiglu_reference(x, b):
    gate, up = (x + b).chunk(2, 1)
    return F.silu(gate) * up


def binary_reference(x, y):
    y = y.to(x.dtype)
    return F.binary_cross_entropy_with_logits(x[~y.isnan()], y[~y.isnan()], reduction="sum")


def cases():
    """(name, operator, reference, arguments); the arguments that require grad are checked both ways."""
    for width in (3, 15, 16, 17, 64, 100):
        x, r = randn(70, width, grad=True), randn(70, width, grad=True)
        w, b = randn(width, grad=True), randn(width, grad=True)
        yield f"rms_norm-{width}", ops.rms_norm, rms_reference, (x, w, 1e-6)
        yield f"layer_norm-{width}", ops.layer_norm, layer_reference, (x, w, b, 1e-5)
        yield (f"add_rms_norm-{width}", ops.add_rms_norm,
               lambda x, r, w, eps: (x + r, rms_reference(x + r, w, eps)), (x, r, w, 1e-6))
        yield (f"add_layer_norm-{width}", ops.add_layer_norm,
               lambda x, r, w, b, eps: (x + r, layer_reference(x + r, w, b, eps)), (x, r, w, b, 1e-5))
        yield f"gelu-{width}", ops.gelu, lambda x, b: F.gelu(x + b), (x, b)
        g, gb = randn(65, 2 * width, grad=True), randn(2 * width, grad=True)
        yield f"swiglu-{width}", ops.swiglu, swiglu_reference, (g, gb)
        yield f"l2_normalize-{width}", ops.l2_normalize, lambda x: F.normalize(x, dim=-1), (x,)
    yield "gelu-plain", ops.gelu, F.gelu, (randn(3, 5, grad=True),)
    for dim in (2, 32, 34, 64):
        position = torch.tensor([0, 1, 2, 0, 5000, 17, 3])
        yield f"rope-{dim}", ops.rope, rope_reference, (randn(7, 3, 2, dim, grad=True), position, 10000.0)
    for causal in (False, True):
        for dim, lengths, heads in (
            (32, (0, 1, 15, 16, 17, 0), 2), (33, (5, 3), 1), (64, (70, 2), 3), (16, (1100,), 1)
        ):
            o, n = offsets(*lengths), sum(lengths)
            packed = randn(n, 3, heads, dim, grad=True)
            yield (f"attention-{dim}-{max(lengths)}-{causal}",
                   lambda x, o, n, c: ops.jagged_attention(*x.unbind(1), o, o, n, n, c, 0.3),
                   lambda x, o, n, c: attention_reference(*x.unbind(1), o, o, c, 0.3),
                   (packed, o, max(lengths), causal))
        qo, ko = offsets(3, 0, 8, 2), offsets(7, 4, 5, 0)
        q, k, v = randn(13, 2, 32, grad=True), randn(16, 2, 32, grad=True), randn(16, 2, 32, grad=True)
        yield (f"attention-cross-{causal}",
               lambda q, k, v, qo, ko, c: ops.jagged_attention(q, k, v, qo, ko, 8, 7, c, 0.2),
               lambda q, k, v, qo, ko, c: attention_reference(q, k, v, qo, ko, c, 0.2),
               (q, k, v, qo, ko, causal))
    for n, v, e, normalize, temperature in (
        (1, 1, 1, False, 1.0),
        (37, 1000, 64, True, 0.1),
        (300, 33, 48, False, 2.0),  # scores of 3.5 standard deviations: |argument of exp| < 20, as the tolerance wants
        (70, 517, 17, True, 0.05),
        (5, 40000, 8, False, 1.0),
    ):
        h, items = randn(n, e, grad=True), randn(v, e, grad=True)
        target = torch.arange(n) * 7919 % v
        yield f"full_softmax-{n}-{v}-{e}", ops.full_softmax, full_reference, (h, items, target, temperature, normalize)
        first, last = torch.arange(n) // 3 * 3, torch.arange(n) // 3 * 3 + torch.arange(n) % 3
        column = torch.cat((target[1:], target[:1])) if v > 3 else torch.zeros(n, dtype=torch.long)
        yield (f"full_softmax_repeats-{n}-{v}-{e}", ops.full_softmax, full_reference,
               (h, items, target, temperature, normalize, randn(1, grad=True), column, first, last.clamp_max(n)))
        for remove, log_q in ((False, False), (True, True)):
            p, neg = randn(n, e, grad=True), randn(v, e, grad=True)
            ids = torch.arange(v) % 11
            lq = (torch.rand(n) - 3, torch.rand(v) - 3) if log_q else (None, None)
            yield (f"sampled_softmax-{n}-{v}-{e}-{remove}", ops.sampled_softmax, sampled_reference,
                   (h, p, neg, target % 13, ids, *lq, temperature, normalize, remove))
    label = torch.tensor([1.0, 0.0, math.nan, 1.0])
    yield "binary_loss", ops.binary_loss, binary_reference, (randn(4, grad=True), label)


CASES = list(cases())


def in_double(a):
    if not torch.is_tensor(a) or not a.is_floating_point():
        return a
    return a.detach().double().requires_grad_(a.requires_grad)


def as_tuple(x):
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize("name,op,reference,args", CASES, ids=[c[0] for c in CASES])
def test_forward_and_gradients(name, op, reference, args, record_property):
    exact = [in_double(a) for a in args]
    got, want = as_tuple(op(*args)), as_tuple(reference(*exact))
    weight = [torch.randn(w.shape, generator=torch.Generator().manual_seed(9)) for w in want]
    inputs = [(a, b) for a, b in zip(args, exact) if torch.is_tensor(a) and a.requires_grad]
    got_d = torch.autograd.grad(sum((g * w).sum() for g, w in zip(got, weight)), [a for a, _ in inputs])
    want_d = torch.autograd.grad(sum((g * w.double()).sum() for g, w in zip(want, weight)), [b for _, b in inputs])
    used = 0.0
    for g, w in zip((*got, *got_d), (*want, *want_d)):
        assert g.shape == w.shape and g.dtype == torch.float32
        if w.numel() == 0:
            continue
        g, w = (x.detach().double().reshape(len(x) if x.dim() else 1, -1) for x in (g, w))
        # Per row: a sum of K terms loses at most about sqrt(K) units of its largest terms; 64 covers
        # the longest chains here (norm, product, exp of an argument up to 20, sum) with K <= 1100.
        scale = w.abs().amax(1, keepdim=True).clamp_min(w.abs().mean())
        share = ((g - w).abs() / (64 * EPS * scale + 1e-30)).max().item()
        used = max(used, share)
    print(f"{name}: {100 * used:.0f} % of the tolerance")
    assert used < 1


def test_dropout_is_keyed_by_sample_and_position():
    x, (sample, position) = torch.ones(50, 100), rows(50)
    y = ops.dropout(x, 0.3, 7, 11, 2, sample, position)
    assert set(y.unique().tolist()) == {0.0, float(torch.tensor(1 / 0.7))}
    # 5000 draws: the mean of kept lies within 5 standard deviations.
    assert abs((y > 0).float().mean() - 0.7) < 5 * math.sqrt(0.3 * 0.7 / 5000)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    again = ops.dropout(x, 0.3, 7, 11, 2, sample[order], position[order])
    assert torch.equal(again, y[order])
    for other in ((8, 11, 2), (7, 12, 2), (7, 11, 3)):
        assert not torch.equal(ops.dropout(x, 0.3, *other, sample, position), y)


def test_dropout_add_and_its_gradients():
    x, bias, residual = randn(50, 100, grad=True), randn(100, grad=True), randn(50, 100, grad=True)
    key = (0.3, 7, 11, 2, *rows(50))
    mask = ops.dropout(torch.ones(50, 100), *key)
    y, d = ops.dropout_add(x, bias, residual, *key), randn(50, 100)
    torch.testing.assert_close(y, residual + (x + bias) * mask)
    got = torch.autograd.grad(y, (x, bias, residual), d)
    for g, w in zip(got, (d * mask, (d * mask).sum(0), d)):
        torch.testing.assert_close(g, w)


def test_sharded_softmax_equals_the_whole():
    h, items, bias = randn(70, 48, grad=True), randn(501, 48, grad=True), randn(1, grad=True)
    target = torch.arange(70) * 31 % 501
    column, first = torch.arange(140) * 17 % 501, torch.arange(70)
    loss = ops.full_softmax(h, items, target, 2.0, False, bias, column, first, 2 * first)
    want_h, want_items, want_bias = torch.autograd.grad(3 * loss, (h, items, bias))
    shards = ((0, 200), (200, 200), (200, 501))  # one of them is empty
    local, known = ([torch.where((x >= a) & (x < b), x - a, -1) for a, b in shards] for x in (target, column))
    h, items, bias = h.detach(), items.detach(), bias.detach()
    stats = [
        ops.softmax_statistics(h, items[a:b], t, 2.0, bias, c, first, 2 * first)
        for (a, b), t, c in zip(shards, local, known)
    ]
    top = torch.stack([s[0] for s in stats]).amax(0)
    lse = top + sum(s[1] * (s[0] - top).exp() for s in stats).log()
    assert torch.allclose((lse - sum(s[2] for s in stats)).sum(), loss)
    parts = [
        ops.softmax_gradient(h, items[a:b], lse, t, 2.0, 3.0, bias, c, first, 2 * first)
        for (a, b), t, c in zip(shards, local, known)
    ]
    torch.testing.assert_close(sum(p[0] for p in parts), want_h, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.cat([p[1] for p in parts]), want_items, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sum(p[2] for p in parts), want_bias, rtol=1e-4, atol=1e-4)


def test_bits_do_not_depend_on_threads_or_runs():
    def run():
        out = []
        for name, op, _, args in CASES:
            result = as_tuple(op(*args))
            inputs = [a for a in args if torch.is_tensor(a) and a.requires_grad]
            out += [*result, *torch.autograd.grad(sum(r.sum() for r in result), inputs)]
        return out

    before, first = torch.get_num_threads(), None
    try:
        for threads in (1, 2, 4, 1):
            torch.set_num_threads(threads)
            result = run()
            first = first or result
            assert all(torch.equal(a, b) for a, b in zip(first, result)), f"{threads} threads"
    finally:
        torch.set_num_threads(before)


def test_a_bfloat16_loss_is_weighted_in_float32():
    h, items, target = randn(9, 16).bfloat16(), randn(50, 16).bfloat16(), torch.arange(9)

    def gradient(weight):
        x = h.clone().requires_grad_()
        (ops.full_softmax(x, items, target, 1.0, False) * weight).backward()
        return x.grad

    assert torch.equal(gradient(1 / 3), (gradient(1.0).float() * (1 / 3)).bfloat16())


def test_bfloat16_keeps_its_type():
    x, w = randn(10, 64).bfloat16().requires_grad_(), randn(64, grad=True)
    y = ops.rms_norm(x, w, 1e-6)
    dx, dw = torch.autograd.grad(y, (x, w), torch.ones_like(y))
    assert (y.dtype, dx.dtype, dw.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    want = rms_reference(x.double(), w.double(), 1e-6)
    assert ((y.double() - want).abs() <= 2.0**-8 * want.abs() + 1e-6).all()


OPCHECK = [c for c in CASES if c[0] in (
    "rms_norm-17", "layer_norm-17", "add_rms_norm-17", "add_layer_norm-17", "gelu-17", "gelu-plain",
    "swiglu-17", "l2_normalize-17", "rope-34", "full_softmax-37-1000-64", "full_softmax_repeats-37-1000-64",
    "sampled_softmax-37-1000-64-True", "binary_loss")]


@pytest.mark.parametrize("name,op,reference,args", OPCHECK, ids=[c[0] for c in OPCHECK])
def test_opcheck(name, op, reference, args):
    torch.library.opcheck(op.default, args)


def test_opcheck_of_the_others():
    o, t = offsets(3, 0, 4), torch.tensor([0, -1, 2])
    q, k, v = (randn(7, 2, 16, grad=True) for _ in range(3))
    torch.library.opcheck(ops.jagged_attention.default, (q, k, v, o, o, 4, 4, True, 0.5))
    key = (0.5, 1, 2, 3, *rows(7))
    torch.library.opcheck(ops.dropout.default, (randn(7, 8, grad=True), *key))
    x, bias, residual = randn(7, 8, grad=True), randn(8, grad=True), randn(7, 8, grad=True)
    torch.library.opcheck(ops.dropout_add.default, (x, bias, residual, *key))
    h, items = randn(3, 8), randn(4, 8)
    torch.library.opcheck(ops.softmax_statistics.default, (h, items, t, 1.0))
    torch.library.opcheck(ops.softmax_gradient.default, (h, items, randn(3), t, 1.0, 1.0))


class Block(torch.nn.Module):
    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = (torch.nn.Parameter(torch.ones(width)) for _ in range(2))
        self.qkv, self.o = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.w13, self.w2 = torch.nn.Linear(width, 128), torch.nn.Linear(64, width)

    def forward(self, x, o, sample, position):
        qkv = ops.rope(self.qkv(ops.rms_norm(x, self.n1, 1e-6)).view(len(x), 3, self.heads, -1), position, 1e4)
        a = ops.jagged_attention(*qkv.unbind(1), o, o, 8, 8, True, 0.25).flatten(1)
        s, normed = ops.add_rms_norm(self.o(a), x, self.n2, 1e-6)
        return ops.dropout_add(self.w2(ops.swiglu(self.w13(normed))), None, s, 0.1, 1, 2, 3, sample, position)


def test_compile_without_a_graph_break():
    block, x, o = Block(), randn(12, 32, grad=True), offsets(5, 0, 7)
    want = block(x, o, *rows(12))
    got = torch.compile(block, fullgraph=True, backend="aot_eager")(x, o, *rows(12))
    torch.testing.assert_close(got, want)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), (x, *block.parameters())) for y in (got, want))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("call,message", [
    (lambda: ops.rms_norm(randn(3, 4), randn(5), 1e-6), "not \\[T, C\\]"),
    (lambda: ops.full_softmax(randn(2, 4), randn(3, 4), torch.tensor([0, 3]), 1.0, False), "target 3 of row 1"),
    (lambda: ops.dropout(randn(3, 4), 1.5, 0, 0, 0, *rows(3)), "p = 1.5"),
    (lambda: ops.jagged_attention(*(randn(3, 1, 4),) * 3, offsets(4), offsets(3), 4, 3, False, 1.0), "offset"),
])
def test_errors_name_what_is_wrong(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()
