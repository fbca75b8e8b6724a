"""What a user would call instead: each peer makes from a row's tensors a call that returns o with its graph, or None where
it does not take the row. Peers outside PyTorch come from folders that the command line names."""

import functools
import sys

import torch
import torch.nn.functional as F


def plain(row):
    """Without what only some peers know."""
    return row.window == (-1, -1) and row.dim == row.value_dim and not row.seeds and "block" not in row.kernels


class Flash2(torch.autograd.Function):
    """libtorch's FlashAttention-2, variable length, without the checks around it."""

    @staticmethod
    def forward(ctx, q, k, v, b):
        o, lse, rng, unused, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, b.q32, b.k32, b.max_q, b.max_k, 0.0, b.row.causal, False, scale=b.scale)
        ctx.save_for_backward(q, k, v, o, lse, rng, unused)
        ctx.b = b
        return o

    @staticmethod
    def backward(ctx, d_o):
        q, k, v, o, lse, rng, unused = ctx.saved_tensors
        b = ctx.b
        return *torch.ops.aten._flash_attention_backward(
            d_o, q, k, v, o, lse, b.q32, b.k32, b.max_q, b.max_k, 0.0, b.row.causal, rng, unused, scale=b.scale), None


def flash2(b):
    return (lambda: Flash2.apply(b.q, b.k, b.v, b)) if plain(b.row) else None


def flex(b):
    """FlexAttention with a document mask: one row of all tokens, blocks without pairs left out."""
    r = b.row
    if r.seeds or "block" in r.kernels or max(len(b.q), len(b.k)) > 300_000:
        return None  # a mask of (tokens / 128)^2 blocks
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def tokens_of(lengths, shift):
        """Sequence of each token, and its place: a sequence's last query stands at its last key."""
        sequence = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        place = torch.arange(len(sequence)) - (lengths.cumsum(0) - lengths - shift)[sequence]
        return sequence.cuda(), place.cuda()

    q_sequence, q_place = tokens_of(r.q, r.k - r.q)
    k_sequence, k_place = tokens_of(r.k, torch.zeros_like(r.k))
    left, right = r.window[0], 0 if r.causal else r.window[1]

    def mask(batch, head, i, j):
        seen = q_sequence[i] == k_sequence[j]
        if right >= 0:
            seen = seen & (k_place[j] <= q_place[i] + right)
        if left >= 0:
            seen = seen & (k_place[j] >= q_place[i] - left)
        return seen

    blocks = torch.compile(create_block_mask)(mask, None, None, len(b.q), len(b.k), device="cuda")
    attend = torch.compile(flex_attention, dynamic=False)
    q, k, v = (x.transpose(0, 1)[None] for x in (b.q, b.k, b.v))
    return lambda: attend(q, k, v, block_mask=blocks, scale=b.scale)[0].transpose(0, 1)


def cudnn(b):
    """Padded to the longest sequence; useful pairs are counted, not the padding's."""
    r = b.row
    if r.window != (-1, -1) or r.seeds or "block" in r.kernels or not torch.equal(r.q, r.k):
        return None
    if int(r.q.min()) == int(r.q.max()) and r.causal:
        return None
    n, most = len(r.q), int(r.q.max())
    if n * most * r.heads * r.dim > 2**31:
        return None
    padded = [torch.randn(n, r.heads, most, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for d in (r.dim, r.dim, r.value_dim)]

    def call():
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(*padded, is_causal=r.causal, scale=b.scale)

    call.inputs = padded
    return call


def importer(folder):
    import site

    site.addsitedir(folder)
    sys.path.insert(0, folder)


def flash4(folder, deterministic):
    importer(folder)
    from flash_attn.cute.interface import flash_attn_varlen_func

    def peer(b):
        r = b.row
        if r.seeds or "block" in r.kernels:
            return None
        more = {"window_size": r.window} if r.window != (-1, -1) else {}

        def call():
            o = flash_attn_varlen_func(b.q, b.k, b.v, cu_seqlens_q=b.q32, cu_seqlens_k=b.k32, max_seqlen_q=b.max_q,
                                       max_seqlen_k=b.max_k, causal=r.causal, softmax_scale=b.scale,
                                       deterministic=deterministic, **more)
            return o[0] if isinstance(o, tuple) else o

        return call

    return peer


def flash3(folder):
    """A built flash_attn_interface."""
    importer(folder)
    from flash_attn_interface import flash_attn_varlen_func

    def peer(b):
        r = b.row
        if r.seeds or "block" in r.kernels:
            return None

        def call():
            o = flash_attn_varlen_func(b.q, b.k, b.v, b.q32, b.k32, b.max_q, b.max_k, softmax_scale=b.scale,
                                       causal=r.causal, window_size=r.window)
            return o[0] if isinstance(o, tuple) else o

        return call

    return peer


def hstu(folder):
    """A built hstu_attn (NVIDIA, SiLU): the peer of gdpa."""
    importer(folder)
    from hstu_attn import hstu_attn_varlen_func

    def peer(b):
        r = b.row
        if not plain(r) or r.q is not r.k:
            return None
        window = (-1, 0) if r.causal else (-1, -1)
        return lambda: hstu_attn_varlen_func(b.q, b.k, b.v, b.q32, b.k32, b.max_q, b.max_k, window_size=window, alpha=b.scale)

    return peer


def peers(arguments):
    """{name: peer} of those asked for; a folder that does not import says so and is left out."""
    found = {"FA2": flash2, "cuDNN padded": cudnn, "Flex": flex}
    outside = {"FA4": (arguments.fa4, functools.partial(flash4, deterministic=False)),
               "FA4 deterministic": (arguments.fa4, functools.partial(flash4, deterministic=True)),
               "FA3": (arguments.fa3, flash3), "CUTLASS HSTU": (arguments.hstu, hstu)}
    for name, (folder, make) in outside.items():
        if not folder:
            continue
        try:
            found[name] = make(folder)
        except Exception as error:  # noqa: BLE001: whatever it is, the others can still run
            print(f"{name} of {folder} is not there: {type(error).__name__}: {error}", flush=True)
    wanted = [p for p in arguments.peers.split(",") if p]
    return {n: p for n, p in found.items() if not wanted or any(n.lower().startswith(w.lower()) for w in wanted)}
