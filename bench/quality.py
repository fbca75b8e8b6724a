#!/usr/bin/env python3
"""Ranking quality over seeds: trains a run once a seed, keeps each result, prints the table of docs/quality.md.

    bench/quality.py LOG DIR [--seeds 5] [--ranks 4] [--program build/tautline] [--run configs/runs/log.yaml] [--set k=v]...

LOG is what `tautline data build` wrote; DIR gets seed-N.json (the run's last line), so that what was interrupted
goes on where it stopped. Mean and standard deviation are over seeds; the baselines are the log's own.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

GROUPS = ("", "_unseen", "_later")
METRICS = [f"{metric}_at_10{group}" for group in GROUPS for metric in ("hr", "ndcg")]


def train(a, seed: int, out: pathlib.Path) -> None:
    command = [a.program, "train", a.run, "--ranks", str(a.ranks), "--json", "--run-dir", str(a.dir / f"run-{seed}")]
    for value in (f"data.log={a.log}", f"seed={seed}", *a.set):
        command += ["--set", value]
    last = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    json.loads(last)
    out.write_text(last + "\n")


def decimals(value: float) -> str:
    return f"{value:.4f}".lstrip("0")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("log")
    p.add_argument("dir", type=pathlib.Path)
    p.add_argument("--seeds", type=int, default=5)
    p.add_argument("--ranks", type=int, default=4)
    p.add_argument("--program", default="build/tautline")
    p.add_argument("--run", default="configs/runs/log.yaml")
    p.add_argument("--set", action="append", default=[])
    a = p.parse_args()
    a.dir.mkdir(parents=True, exist_ok=True)
    results = []
    for seed in range(1, a.seeds + 1):
        out = a.dir / f"seed-{seed}.json"
        if not out.exists():
            train(a, seed, out)
        results.append(json.loads(out.read_text()))
    print("| model | HR@10 | NDCG@10 | HR@10 unseen | NDCG@10 unseen | HR@10 later | NDCG@10 later |")
    print("|---|---|---|---|---|---|---|")
    for baseline in ("popularity", "rules"):
        cells = [decimals(results[0][f"{baseline}_{m}"]) for m in METRICS if f"{baseline}_{m}" in results[0]]
        if cells:
            print(f"| {baseline} | " + " | ".join(cells) + " |")
    cells = []
    for metric in METRICS:
        values = [r[metric] for r in results]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells.append(f"{decimals(statistics.mean(values))} ± {decimals(spread)}")
    ranks = {r["ranks"] for r in results}
    print(f"| tautline, {len(results)} seeds, {', '.join(map(str, sorted(ranks)))} ranks | " + " | ".join(cells) + " |")
    print(f"\nepochs {[r['epoch'] for r in results]}, NDCG@10 by seed {[decimals(r['ndcg_at_10']) for r in results]}")


if __name__ == "__main__":
    main()
