#!/usr/bin/env python3
"""bench/attention_table.py [bench/results/attention.json]

The tables of docs/kernels.md from a run of bench/attention. "best" is the better of FlashAttention-3 and -4 where both ran
(attention_rows.py), FA2 what ran beside ours."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import attention_rows  # noqa: E402


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent / "results/attention.json"
    by = {(r["kernel"], r["case"], r["direction"]): r for r in json.loads(Path(path).read_text())}
    rows = {row.name: row for row in attention_rows.rows()}

    def cells(kernel, row, direction):
        r = by.get((kernel, row.name, direction))
        if r is None:
            return ["-", "-"]
        i = direction == "backward"
        return [f"{r['tflops']:.0f}", f"{r['tflops'] / max(row.fa3[i], row.fa4[i]):.2f}"]

    def beside(row, direction):
        r = by.get(("softmax", row.name, direction), {"peers": {}})
        return f"{r['tflops'] / r['peers']['FA2']:.2f}" if "FA2" in r["peers"] else "-"

    print("| case | softmax forward | x best | x FA2 | softmax backward | x best | x FA2 | SiLU forward | x best | GELU (tanh) forward | x best "
          "| SiLU backward | x best | GELU (tanh) backward | x best |")
    print("|---" * 15 + "|")
    for row in rows.values():
        if row.fa3 and ("softmax", row.name, "forward") in by:
            line = [row.name, *cells("softmax", row, "forward"), beside(row, "forward"), *cells("softmax", row, "backward"),
                    beside(row, "backward")]
            for kernel, direction in (("silu fast", "forward"), ("gelu_tanh fast", "forward"), ("silu fast", "backward"),
                                      ("gelu_tanh fast", "backward")):
                line += cells(kernel, row, direction)
            print("| " + " | ".join(line) + " |")
    print("\n| other | forward | backward |\n|---|---|---|")
    for row in rows.values():
        for kernel in row.kernels:
            both = [by.get((kernel, row.name, direction)) for direction in ("forward", "backward")]
            if not row.fa3 and all(both):
                text = [f"{r['ms']:.2f} ms, {r['tflops']:.0f} TFLOP/s, {100 * r['ceiling_share']:.0f} % of the ceiling" for r in both]
                print(f"| {kernel}, {row.name} | " + " | ".join(text) + " |")


if __name__ == "__main__":
    main()
