"""Attention as Python users meet it: jagged_attention, gdpa and block_attention against PyTorch's formulas in
float64, torch.library.opcheck, and torch.compile without a graph break.

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
ACTIVATIONS = {
    "identity": lambda x: x,
    "relu": F.relu,
    "squared_relu": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.01),
    "hard_swish": F.hardswish,
}


def randn(*shape, grad=True, seed=[0]):
    seed[0] += 1
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed[0])).requires_grad_(grad)


def offsets(*lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def time_bucket(d, buckets):
    octave = (d.abs().float().view(torch.int32) >> 22) - 254
    return octave.maximum((d != 0).int()).clamp_max(buckets - 1).long()


def reference(weights, q, k, v, q_offsets, k_offsets, causal, left=-1, right=-1, position=None, time=None,
              q_time=None, k_time=None):
    """weights(q k^T [H, nq, nk], bias, hidden) -> [H, nq, nk]."""
    out, right, group = [], 0 if causal else right, q.shape[1] // k.shape[1]
    for b in range(len(k_offsets) - 1):
        of_q = slice(None) if q_offsets is None else slice(q_offsets[b], q_offsets[b + 1])
        of_k = slice(k_offsets[b], k_offsets[b + 1])
        qs, ks, vs = q[of_q].transpose(0, 1), k[of_k].transpose(0, 1), v[of_k].transpose(0, 1)
        ks, vs = ks.repeat_interleave(group, 0), vs.repeat_interleave(group, 0)
        nq, nk = qs.shape[1], ks.shape[1]
        r = (torch.arange(nq) + nk - nq)[:, None] - torch.arange(nk)
        hidden = torch.zeros(nq, nk, dtype=torch.bool)
        if left >= 0:
            hidden |= r > left
        if right >= 0:
            hidden |= -r > right
        bias = torch.zeros(1, nq, nk, dtype=q.dtype)
        if position is not None:
            far = position.shape[1] // 2
            bias = bias + position[:, far + r.clamp(-far, far)]
        if time is not None:
            bias = bias + time[:, time_bucket(q_time[of_q][:, None] - k_time[of_k], time.shape[1])]
        out.append((weights(qs @ ks.transpose(1, 2), bias, hidden) @ vs).transpose(0, 1))
    return torch.cat(out)


def softmax_reference(q, k, v, qo, ko, max_q, max_k, causal, scale, *rest):
    def weights(score, bias, hidden):
        return (score * scale + bias).masked_fill(hidden, -math.inf).softmax(-1).nan_to_num()

    return reference(weights, q, k, v, qo, ko, causal, *rest)


def gdpa_reference(q, k, v, qo, ko, max_q, max_k, causal, activation, alpha, beta, *rest):
    def weights(score, bias, hidden):
        return beta * ACTIVATIONS[activation](alpha * score + bias).masked_fill(hidden, 0)

    return reference(weights, q, k, v, qo, ko, causal, *rest)


def turned(x, position, layout, base):
    if layout == "none":
        return x
    half = x.shape[-1] // 2
    angle = position[:, None].double() * base ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = (x[..., :half], x[..., half:]) if layout == "half_split" else (x[..., ::2], x[..., 1::2])
    a, b = a * cos - b * sin, b * cos + a * sin
    return (torch.cat((a, b), -1) if layout == "half_split" else torch.stack((a, b), -1).flatten(-2)).to(x.dtype)


def block_reference(q, k, v, o, causal, scale, layout="none", base=1e4, rotate_values=False):
    lengths, blocks, position = o.diff().tolist(), [], []
    for n in lengths:
        blocks += [min(64, n - i) for i in range(0, n, 64)]
        position.append(torch.arange(n))
    position = torch.cat(position)
    q, k = turned(q, position, layout, base), turned(k, position, layout, base)
    v = turned(v, position, layout, base) if rotate_values else v
    b = offsets(*blocks)
    return softmax_reference(q, k, v, b, b, 64, 64, causal, scale)


def self_reference(qkv, position, base, o, longest, kind, scale, beta, causal, left=-1, right=-1, position_bias=None,
                   time_bias=None, time=None):
    q, k, v = qkv.unbind(1)
    if position is not None:
        q, k = turned(q, position, "half_split", base), turned(k, position, "half_split", base)
    rest = (left, right, position_bias, time_bias, time, time)
    if kind == "softmax":
        return softmax_reference(q, k, v, o, o, longest, longest, causal, scale, *rest)
    return gdpa_reference(q, k, v, o, o, longest, longest, causal, kind, scale, beta, *rest)


def shapes():
    """(name, q, k, v, q_offsets, k_offsets): self with packed views, cross with grouped heads, broadcast queries."""
    o = offsets(0, 1, 15, 17, 0, 40)
    packed = randn(73, 3, 2, 33, grad=False)
    yield ("self", *(x.requires_grad_() for x in packed.unbind(1)), o, o)
    qo, ko = offsets(3, 0, 8, 2), offsets(7, 4, 600, 0)
    yield "grouped", randn(13, 6, 32), randn(611, 2, 32), randn(611, 2, 20), qo, ko
    yield "broadcast", randn(5, 2, 16), randn(611, 2, 16), randn(611, 2, 24), None, ko


def cases():
    """(name, operator, reference, arguments); the arguments that require grad are checked both ways."""
    for name, q, k, v, qo, ko in shapes():
        heads, d = q.shape[1], q.shape[2]
        q_time, k_time = (torch.randint(0, 1 << 20, (len(x),), generator=torch.Generator().manual_seed(3)) for x in (q, k))
        common = (q, k, v, qo, ko, 600, 600)
        shared = (randn(1, 41), randn(1, 30), q_time, k_time)
        own = (randn(heads, 41), randn(heads, 127), q_time, k_time)
        for causal, rest in (
            (False, ()), (True, ()), (False, (5, 3)), (True, (9, -1)), (True, (-1, -1, *own)), (False, (-1, -1, *shared)),
            (False, (20, 20, own[0])), (True, (-1, -1, None, *shared[1:])),
        ):
            tail = f"{name}-{causal}-{len(rest)}-{rest[2:3] == (None,)}"
            yield (f"softmax-{tail}", ops.jagged_attention, softmax_reference, (*common, causal, d**-0.5, *rest))
            yield (f"silu-{tail}", ops.gdpa, gdpa_reference, (*common, causal, "silu", d**-0.5, 0.1, *rest))
        for f in ACTIVATIONS:
            yield f"{f}-{name}", ops.gdpa, gdpa_reference, (*common, True, f, d**-0.5, 0.1, -1, -1, *own)
    o = offsets(0, 1, 15, 17, 0, 40)
    position = torch.cat([torch.arange(n) for n in o.diff().tolist()])
    time = torch.randint(0, 1 << 20, (73,), generator=torch.Generator().manual_seed(4))
    for kind in ("softmax", "silu"):
        for name, turn, rest in (("", None, (False,)), ("rope", position, (True,)),
                                 ("bias", position, (True, -1, -1, randn(2, 41), randn(1, 30), time))):
            yield (f"self-{kind}-{name}", ops.self_attention, self_reference,
                   (randn(73, 3, 2, 32), turn, 1e4, o, 40, kind, 0.2, 0.1, *rest))
    o = offsets(0, 1, 63, 64, 65, 0, 200)
    for causal in (False, True):
        for layout in ("none", "half_split", "interleaved"):
            for rotate_values in (False, True):
                yield (f"block-{causal}-{layout}-{rotate_values}", ops.block_attention, block_reference,
                       (randn(393, 4, 32), randn(393, 2, 32), randn(393, 2, 32), o, causal, 0.2, layout, 1e4, rotate_values))


CASES = list(cases())
IDS = [c[0] for c in CASES]


def in_double(a):
    if not torch.is_tensor(a) or not a.is_floating_point():
        return a
    return a.detach().double().requires_grad_(a.requires_grad)


@pytest.mark.parametrize("name,op,formula,args", CASES, ids=IDS)
def test_forward_and_gradients(name, op, formula, args):
    exact = [in_double(a) for a in args]
    got, want = op(*args), formula(*exact)
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(9))
    inputs = [(a, b) for a, b in zip(args, exact) if torch.is_tensor(a) and a.requires_grad]
    got_d = torch.autograd.grad((got * weight).sum(), [a for a, _ in inputs])
    want_d = torch.autograd.grad((want * weight.double()).sum(), [b for _, b in inputs])
    used = 0.0
    for g, w in zip((got, *got_d), (want, *want_d)):
        assert g.shape == w.shape and g.dtype == torch.float32
        g, w = (x.detach().double().reshape(len(x), -1) for x in (g, w))
        # Per row: a sum of K terms loses at most about sqrt(K) units of its largest terms; 64 covers the longest
        # chains here (product, activation or exp of an argument up to 20, sum) with K <= 600 keys of 3 heads.
        scale = w.abs().amax(1, keepdim=True).clamp_min(w.abs().mean())
        used = max(used, ((g - w).abs() / (64 * EPS * scale + 1e-30)).max().item())
    print(f"{name}: {100 * used:.0f} % of the tolerance")
    assert used < 1


def test_bits_do_not_depend_on_threads_or_runs():
    def run():
        out = []
        for _, op, _, args in CASES:
            y = op(*args)
            out += [y, *torch.autograd.grad(y.sum(), [a for a in args if torch.is_tensor(a) and a.requires_grad])]
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


OPCHECK = [c for c in CASES if c[0] in (
    "softmax-self-True-0-False", "softmax-grouped-True-6-False", "softmax-broadcast-True-6-True",
    "silu-broadcast-False-6-False", "gelu-self", "block-True-interleaved-True",
    "self-softmax-", "self-softmax-bias", "self-silu-rope")]


@pytest.mark.parametrize("name,op,formula,args", OPCHECK, ids=[c[0] for c in OPCHECK])
def test_opcheck(name, op, formula, args):
    torch.library.opcheck(op.default, args)


def test_the_short_form_of_before():
    o, (q, k, v) = offsets(3, 4), (randn(7, 2, 16) for _ in range(3))
    got = ops.jagged_attention(q, k, v, o, o, 4, 4, True, 0.5)
    assert torch.equal(got, ops.jagged_attention(q, k, v, o, o, 4, 4, True, 0.5, -1, 0))


def test_a_packed_projection_is_its_three_parts():
    """The same bits as rope, unbind and jagged_attention, gradients too."""
    o, x = offsets(3, 0, 90, 40), randn(133, 3, 2, 32)
    position = torch.cat([torch.arange(n) for n in o.diff().tolist()])
    whole = ops.self_attention(x, position, 1e4, o, 90, "softmax", 0.2, 1.0, True)
    parts = ops.jagged_attention(*ops.rope(x, position, 1e4).unbind(1), o, o, 90, 90, True, 0.2)
    assert torch.equal(whole, parts)
    assert torch.equal(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (whole, parts)))


def test_bfloat16_keeps_its_type():
    o, (q, k, v) = offsets(3, 4), (randn(7, 2, 16, grad=False).bfloat16().requires_grad_() for _ in range(3))
    table = randn(2, 9)
    for y in (ops.jagged_attention(q, k, v, o, o, 4, 4, True, 0.5, -1, -1, table),
              ops.gdpa(q, k, v, o, o, 4, 4, True, "silu", 0.5, 1.0, -1, -1, table)):
        gradients = torch.autograd.grad(y.sum(), (q, k, v, table))
        assert [x.dtype for x in (y, *gradients)] == [torch.bfloat16] * 4 + [torch.float32]


def test_an_order_lists_every_tile_by_falling_work():
    q, k = offsets(300, 0, 70, 129), offsets(10, 5, 700, 0)
    order = ops.attention_order(q, k, 499, 715, 300, 700, 4, 2, 64, True)
    assert order.dtype == torch.int32 and order.shape == (2 + 499 // 64 + 4 + 715 // 64 + 4, 2)
    wide = ops.attention_order(q, k, 499, 715, 300, 700, 4, 2, 72, True)  # tiles of another size, and so told apart
    assert wide.shape == (order.shape[0] + 1, 2)
    (count, tile), rest = order[0].tolist(), order[1:].tolist()
    assert sorted(map(tuple, rest[:count])) == [(b, t) for b, n in enumerate(q.diff().tolist()) for t in range(-(-n // tile))]
    assert rest[0][0] == 2  # 70 queries that see 700 keys
    torch.library.opcheck(ops.attention_order.default, (q, k, 499, 715, 300, 700, 4, 2, 64, True))
    torch.library.opcheck(ops.attention_order.default, (q, k, 499, 715, 300, 700, 4, 2, 128, True))
    torch.library.opcheck(ops.attention_order.default, (None, k, 12, 715, 3, 700, 4, 2, 64, False, 5, 5))
    x = randn(499, 4, 64)
    y = ops.jagged_attention(x, x, x, q, q, 300, 300, True, 0.125)
    assert torch.equal(y, ops.jagged_attention(x, x, x, q, q, 300, 300, True, 0.125, order=order))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)
        self.seeds, self.position = torch.nn.Parameter(randn(3, 2, 16)), torch.nn.Parameter(randn(2, 15))
        self.time = torch.nn.Parameter(randn(1, 40))

    def forward(self, x, o, t):
        q, k, v = self.qkv(x).view(len(x), 3, 2, 16).unbind(1)
        a = ops.jagged_attention(q, k, v, o, o, 9, 9, True, 0.25, -1, -1, self.position, self.time, t, t)
        a = ops.gdpa(a, k, v, o, o, 9, 9, True, "silu", 0.25, 0.1, 4, -1, self.position)
        a = ops.block_attention(a, k, v, o, True, 0.25, "half_split")
        return ops.jagged_attention(self.seeds, k, a, None, o, 3, 9, False, 0.25)


def test_compile_without_a_graph_break():
    layer, x, o, t = Layer(), randn(12, 32), offsets(5, 0, 7), torch.arange(12) ** 2
    want = layer(x, o, t)
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, o, t)
    assert got.shape == (9, 2, 16)
    torch.testing.assert_close(got, want)
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), (x, *layer.parameters())) for y in (got, want))):
        torch.testing.assert_close(a, b)


def test_nothing_is_a_normal_number_of_tokens():
    none, o = randn(0, 2, 8), offsets()
    for y in (ops.jagged_attention(none, none, none, o, o, 0, 0, True, 1.0),
              ops.gdpa(none, none, none, o, o, 0, 0, True, "silu"), ops.block_attention(none, none, none, o, True, 1.0)):
        assert y.shape == (0, 2, 8)
        assert torch.autograd.grad(y.sum(), none)[0].shape == (0, 2, 8)
    seeds, table = randn(3, 2, 8), randn(2, 5)
    y = ops.jagged_attention(seeds, none, none, None, offsets(0, 0), 3, 0, False, 1.0, -1, -1, table)
    assert y.shape == (6, 2, 8) and not y.any()
    assert not any(d.any() for d in torch.autograd.grad(y.sum(), (seeds, table)))


X, O = randn(3, 2, 4), offsets(3)


@pytest.mark.parametrize("call,message", [
    (lambda: ops.jagged_attention(X, randn(3, 3, 4), randn(3, 3, 4), O, O, 3, 3, True, 1.0), "multiple of G"),
    (lambda: ops.jagged_attention(X, X, X, offsets(4), O, 4, 3, True, 1.0), "offsets run from 0 to 4"),
    (lambda: ops.jagged_attention(X, X, X, O, O, 3, 3, True, -1.0), "scale -1"),
    (lambda: ops.jagged_attention(X, X, X, O, O, 3, 3, True, 1.0, -2), "window -2"),
    (lambda: ops.jagged_attention(X, X, X, O, O, 3, 3, True, 1.0, -1, -1, randn(2, 4)), "2 R - 1 are needed"),
    (lambda: ops.jagged_attention(X, X, X, O, O, 3, 3, True, 1.0, -1, -1, randn(3, 5)), "2 heads or 1"),
    (lambda: ops.jagged_attention(X, X, X, O, O, 3, 3, True, 1.0, -1, -1, None, randn(2, 5)), "go together"),
    (lambda: ops.gdpa(X, X, X, O, O, 3, 3, True, "swish"), "'swish' is none of identity, relu"),
    (lambda: ops.gdpa(X, X, X, O, O, 3, 3, True, "silu", math.inf), "not both finite"),
    (lambda: ops.attention_order(O, O, 3, 3, 3, 3, 3, 2, 4, True), "3 heads over 2"),
    (lambda: ops.attention_order(offsets(4), O, 3, 3, 3, 3, 2, 2, 4, True), "offsets run from 0 to 4"),
    (lambda: ops.block_attention(X, X, X, O, True, 1.0, "rotary"), "rope 'rotary'"),
    (lambda: ops.block_attention(*(randn(3, 1, 5),) * 3, O, True, 1.0, "half_split"), "even head dimension"),
])
def test_errors_name_what_is_wrong(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()
