#!/usr/bin/env python3
"""How far the losses of the first steps on GPUs and in bf16 are from the CPU's in FP32, step by step.

    bench/loss_deviation.py LOG OUT.json [--program build-cuda/tautline] [--steps 100] [--gpus 1,2] [--commit HASH]

LOG is what `tautline data build` wrote. A row of GPUs passes that is at most twice as far off as the CPU's own bf16."""
import argparse
import json
import pathlib
import subprocess
import tempfile


def losses(a, *settings: str, ranks: int = 1) -> list[float]:
    """Of each step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [a.program, "train", "configs/runs/log.yaml", "--run-dir", folder, "--ranks", str(ranks), "--json"]
        for value in (f"data.log={a.log}", "model=configs/models/sasrec.yaml", "batch=512", "epochs=0", f"steps={a.steps}",
                      "evaluate.every=end", "evaluate.stop_after=never", "checkpoint.every=0", *settings):
            command += ["--set", value]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        records = map(json.loads, (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines())
        return [r["loss"] for r in records if r["kind"] == "train"]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("log")
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--program", default="build-cuda/tautline")
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--gpus", default="1,2")
    p.add_argument("--commit", default="unknown")
    a = p.parse_args()
    runs = {"CPU, fp32": losses(a, "device=cpu", "plan.precision=fp32"),
            "CPU, bf16": losses(a, "device=cpu", "plan.precision=bf16")}
    for gpus in filter(None, a.gpus.split(",")):
        runs[f"{gpus} GPU, bf16"] = losses(a, "device=cuda", "plan.precision=bf16", ranks=int(gpus))
    exact, bf16 = runs["CPU, fp32"], runs["CPU, bf16"]

    def distance(run):
        return [abs(x - y) for x, y in zip(run, exact, strict=True)]

    print("| run | greatest | mean |\n|---|---|---|")
    rows = {}
    for name, run in runs.items():
        d, unit = distance(run), distance(bf16)
        rows[name] = {"max_abs": max(d), "mean_abs": sum(d) / len(d), "losses": run}
        if run is not exact:
            print(f"| {name} | {max(d):.2e} ({max(d) / max(unit):.2f} x) | {sum(d) / len(d):.2e} ({sum(d) / sum(unit):.2f} x) |")
    a.out.write_text(json.dumps({"run": f"configs/runs/log.yaml with configs/models/sasrec.yaml, batch 512, {a.steps} steps",
                                 "log": pathlib.Path(a.log).name, "commit": a.commit, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
