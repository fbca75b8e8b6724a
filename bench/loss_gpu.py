#!/usr/bin/env python3
"""bench/loss_gpu.py --ops build-cuda/libtautline_ops.so [--json OUT.json] [--commit HASH]

The losses over items on one GPU in bfloat16, forward with the gradients (one call makes both): time, and the rate of
their three products (6 N V d) as a share of what one product with the same inner dimension d makes in the same run."""

import argparse
import json
from pathlib import Path

import torch
from gpu_timing import median_ms


def tensor(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", required=True)
    parser.add_argument("--json")
    parser.add_argument("--commit", default="")
    a = parser.parse_args()
    torch.ops.load_library(a.ops)
    ops, results = torch.ops.tautline, []
    run = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {a.commit or 'commit unknown'}"
    print(run)
    for name, n, v, d in (("sampled, peer_s", 201_000, 1024, 64), ("sampled, peer_m", 102_000, 1024, 64),
                          ("sampled, peer_l", 25_000, 1024, 64), ("sampled", 100_000, 1024, 256),
                          ("full", 50_000, 100_000, 64), ("full", 50_000, 100_000, 256)):
        h, items = tensor(n, d), tensor(v, d)
        target = torch.randint(v, (n,), device="cuda")
        if name.startswith("sampled"):
            positive, ids, q = tensor(n, d), torch.arange(v, device="cuda"), torch.zeros(n, device="cuda")
            inputs = [x.requires_grad_() for x in (h, positive, items)]
            loss = lambda: ops.sampled_softmax(h, positive, items, target, ids, q, q[:v], 1.0, False, True)  # noqa: E731
        else:
            inputs = [x.requires_grad_() for x in (h, items)]
            loss = lambda: ops.full_softmax(h, items, target, 1.0, False)  # noqa: E731
        ms = median_ms(lambda: torch.autograd.grad(loss(), inputs), 15)
        rows = min(n, 2**31 // (2 * v))  # what is written fits
        product = 2 * rows * v * d / median_ms(lambda: h[:rows].detach() @ items.detach().T, 15) / 1e9
        rate = 6 * n * v * d / ms / 1e9
        print(f"{name:16s} N {n:7d} V {v:6d} d {d:3d} {ms:8.3f} ms {rate:6.0f} TFLOP/s, {100 * rate / product:5.1f} % of one product's "
              f"{product:.0f}", flush=True)
        results.append({"loss": name, "n": n, "v": v, "d": d, "ms": round(ms, 4), "tflops": round(rate, 1),
                        "product_tflops": round(product, 1), "run": run})
        del h, items, inputs, loss
    if a.json:
        Path(a.json).write_text("[\n" + ",\n".join(f"  {json.dumps(r)}" for r in results) + "\n]\n")


if __name__ == "__main__":
    main()
