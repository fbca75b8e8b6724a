#!/usr/bin/env python3
"""bench/attention_table.py [bench/results/attention.json]

The tables of docs/kernels.md from a run of bench/attention: TFLOP/s and the ratios to its peers. "best" is the better of
FlashAttention-4 in that run and FlashAttention-3, in it or estimated from it."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import attention_rows  # noqa: E402

BEST = ("FA4", "FA4 deterministic", "FA3")


def ratio(r, *peers):
    """To the best of the peers whose names begin so."""
    there = [x for name, x in r["peers"].items() if name.startswith(peers)]
    return f"{r['tflops'] / max(there):.2f}" if there else "-"


def rate_and(r, *peers_of_columns):
    return [f"{r['tflops']:.0f}", *(ratio(r, *peers) for peers in peers_of_columns)]


def table(head, lines):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for line in lines:
        print("| " + " | ".join(line) + " |")
    print()


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent / "results/attention.json"
    by = {(r["kernel"], r["case"], r["direction"]): r for r in json.loads(Path(path).read_text())}
    rows = [row for row in attention_rows.rows() if ("softmax", row.name, "forward") in by or "block" in row.kernels]
    fixed = [row.name for row in rows if row.fa3]

    def line(name, kernel, forward, backward):
        return rate_and(by[kernel, name, "forward"], *forward) + rate_and(by[kernel, name, "backward"], *backward)

    table(("softmax", "forward", "x best", "x cuDNN padded", "x FA2", "backward", "x best", "x FA4 deterministic", "x cuDNN padded"),
          [[n, *line(n, "softmax", (BEST, ("cuDNN",), ("FA2",)), (BEST, ("FA4 deterministic",), ("cuDNN",)))] for n in fixed])
    table(("activations, fast", "SiLU forward", "x best", "SiLU backward", "x best", "GELU (tanh) forward", "x best",
           "GELU (tanh) backward", "x best"),
          [[n, *line(n, "silu fast", (BEST,), (BEST,)), *line(n, "gelu_tanh fast", (BEST,), (BEST,))] for n in fixed])
    others = []
    for row in rows:
        for kernel in row.kernels:
            both = [by.get((kernel, row.name, direction)) for direction in ("forward", "backward")]
            if row.fa3 or not all(both):
                continue
            others.append([f"{kernel}, {row.name}"])
            for r in both:
                text = f"{r['ms']:.2f} ms, {r['tflops']:.0f} TFLOP/s, {100 * r['ceiling_share']:.0f} % of the ceiling"
                if r["peers"]:
                    best = max(r["peers"], key=r["peers"].get)
                    text += f", {r['tflops'] / r['peers'][best]:.2f} x {best}"
                others[-1].append(text)
    table(("other", "forward", "backward"), others)


if __name__ == "__main__":
    main()
