"""The rows of bench/attention: shapes of recommendation batches, what they cost at least, and what FlashAttention-3 and -4
did with them where both ran (TFLOP/s, one H200, November 2026): FA3 is not in every run, FA4 measured in the run times
that ratio stands for it."""

import math
from dataclasses import dataclass

import torch


@dataclass
class Row:
    name: str
    kernels: tuple  # of ours: softmax, block, or an activation of gdpa and its accuracy
    heads: int
    dim: int
    q: torch.Tensor  # lengths
    k: torch.Tensor
    causal: bool = False
    window: tuple = (-1, -1)
    value_dim: int = 0
    seeds: int = 0  # one set of queries for every sequence
    fa3: tuple = ()  # forward, backward
    fa4: tuple = ()

    def __post_init__(self):
        self.value_dim = self.value_dim or self.dim

    def pairs(self):
        """Visible (query, key) pairs."""
        if self.window == (-1, -1) and not self.causal:
            return float((self.q * self.k).sum())
        total = 0.0
        for nq, nk in zip(self.q.tolist(), self.k.tolist()):
            p = torch.arange(nq, dtype=torch.float64) + nk - nq
            right = 0 if self.causal else self.window[1]
            last = (p + right).clamp(-1, nk - 1) if right >= 0 else torch.full_like(p, nk - 1)
            first = (p - self.window[0]).clamp(0, nk) if self.window[0] >= 0 else torch.zeros_like(p)
            total += (last - first + 1).clamp_min(0).sum().item()
        return total

    def flop(self, backward):
        """2 FLOP a product: forward q k and p v, backward those with d_o v, d_s k, d_s q and p d_o (q k again)."""
        d, e = self.dim, self.value_dim
        return 2 * self.heads * self.pairs() * (3 * d + 2 * e if backward else d + e)

    def bytes(self, backward):
        """q, k, v, o once each; the backward reads d_o too and writes three gradients."""
        tq, tk = int(self.q.sum()), int(self.k.sum())
        q = self.seeds or tq
        forward = q * self.dim + tk * (self.dim + self.value_dim) + tq * self.value_dim
        return 2 * self.heads * (2 * forward if backward else forward)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def log_normal(count, mean, most, sigma=0.9):
    mu = math.log(mean) - sigma**2 / 2
    return torch.exp(mu + sigma * torch.randn(count, generator=generator())).round().clamp(16, most).long()


def uniform(count, longest, mean_share):
    """Around mean_share * longest: fixed for 1, [0, longest] for .5."""
    if mean_share >= 1:
        return torch.full((count,), longest)
    low = (2 * mean_share - 1) * longest
    return (low + (longest - low) * torch.rand(count, generator=generator())).round().clamp(1).long()


ALL = ("softmax", "silu fast", "gelu_tanh fast")


def rows():
    def self_row(name, lengths, heads, dim, **more):
        return Row(name, more.pop("kernels", ALL), heads, dim, lengths, lengths, **more)

    fa3 = {(256, 1): (317, 229), (256, 0.5): (176, 148), (512, 1): (445, 363), (512, 0.5): (308, 261),
           (1024, 1): (525, 459), (1024, 0.5): (412, 382), (2048, 1): (564, 526), (2048, 0.5): (516, 468)}
    fa4 = {(256, 1): (203, 200), (256, 0.5): (99, 121), (512, 1): (345, 344), (512, 0.5): (207, 234),
           (1024, 1): (487, 452), (1024, 0.5): (342, 367), (2048, 1): (536, 510), (2048, 0.5): (477, 438)}
    exact = ("silu", "gelu")  # what accuracy costs, on one row
    out = [self_row(f"L={n} s={s}", uniform(1152, n, s), 4, 128, fa3=fa3[n, s], fa4=fa4[n, s],
                    kernels=ALL + exact if (n, s) == (512, 1) else ALL)
           for n in (256, 512, 1024, 2048) for s in (1, 0.5)]
    short, middle, long = log_normal(512, 400, 2048), log_normal(256, 800, 4096), log_normal(64, 3000, 8192)
    out += [
        self_row("mean 394 d=64 causal", short, 8, 64, causal=True, fa3=(218, 183), fa4=(154, 208)),
        self_row("mean 394 causal", short, 4, 128, causal=True, fa3=(352, 257), fa4=(236, 277)),
        self_row("mean 841 causal", middle, 4, 128, causal=True, fa3=(511, 381), fa4=(391, 422)),
        self_row("mean 841", middle, 4, 128, fa3=(545, 476), fa4=(536, 527)),
        self_row("mean 2485 causal", long, 4, 128, causal=True, fa3=(640, 516), fa4=(621, 559)),
    ]
    for n in (512, 1024, 2048):
        out.append(Row(f"Q={n} KV=256", ALL, 4, 128, uniform(288, n, 1), uniform(288, 256, 1)))
    out.append(Row("Q=64 KV=2000", ALL, 4, 128, uniform(1152, 64, 1), uniform(1152, 2000, 1)))
    out.append(Row("L=512 d=64 value 128", ("softmax",), 4, 64, uniform(288, 512, 1), uniform(288, 512, 1), value_dim=128))
    behaviour = uniform(1152, 2000, 0.7)  # in [800, 2000]
    out.append(self_row("window 63,63 U[800,2000]", behaviour, 4, 128, window=(63, 63), kernels=("softmax",)))
    out.append(self_row("blocks of 64 U[800,2000]", behaviour, 4, 128, kernels=("block",)))
    pooled = (1000 * torch.rand(1152, generator=generator())).round().long()
    out.append(Row("64 seeds U[0,1000]", ("softmax",), 4, 128, torch.full((1152,), 64), pooled, seeds=64))
    return out
