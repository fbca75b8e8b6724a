"""The built program as a user runs it, for the fault tests: started, watched, killed, resumed.

The program's path comes from TAUTLINE_PROGRAM (ctest sets it)."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TAUTLINE_PROGRAM", "")
END_SECONDS = 30  # what docs/launch.md promises for a job with a dead rank
NO_TRACE = ("terminate called", "broken invariant", "Traceback", "frame #", "Exception raised from")


class Job:
    """A program under way, in a session of its own, its output in files."""

    def __init__(self, folder, *arguments, launcher=(), env=None, out=None, **options):
        self.out, self.err = (pathlib.Path(folder) / f"output.{end}" for end in ("out", "err"))
        self.out = out or self.out
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [*map(str, launcher), PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True,
                cwd=options.pop("cwd", SOURCE), env={**os.environ, **(env or {})}, **options)

    def ranks(self):
        """Pids of the local ranks, by rank."""
        found = {}
        for pid in children(self.process.pid):
            rank = variable(pid, "RANK")
            if rank is not None:
                found[int(rank)] = pid
        return found

    def finish(self, seconds=120):
        try:
            self.status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError(f"still running after {seconds} s:\n{self.errors()}")
        return self

    def stop(self):
        for pid in [self.process.pid, *self.ranks().values()]:
            kill(pid, signal.SIGKILL)
        self.process.wait()

    def errors(self):
        return self.err.read_text(errors="replace")

    def json(self):
        return json.loads(self.out.read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()


def errors_of(job):
    """What the program says went wrong, without lines of progress."""
    return [line for line in job.errors().split("\n") if "tautline: " in line]


def expect_user_error(job, *says, lines=None):
    assert job.status == 2, job.errors()
    assert not [trace for trace in NO_TRACE if trace in job.errors()], job.errors()
    said = errors_of(job)
    assert len(said) == 1, job.errors()
    if lines:
        assert job.errors().count("\n") == lines, job.errors()
    for text in says:
        assert str(text) in said[0], job.errors()


def children(pid):
    try:
        return [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def variable(pid, name):
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for entry in entries:
        if entry.startswith(name.encode() + b"="):
            return entry.split(b"=", 1)[1].decode()
    return None


def kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def run(folder, *arguments, **options):
    with Job(folder, *arguments, **options) as job:
        return job.finish()


def wait_until(condition, job, seconds=60):
    """Polls closely: the moments that the tests look for last milliseconds. False: never came."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        if job.process.poll() is not None:
            return bool(condition())
        time.sleep(0.0005)
    return False


def records(run_dir, kind=None):
    """Whole lines of metrics.jsonl, without the clock."""
    try:
        lines = (pathlib.Path(run_dir) / "metrics.jsonl").read_text().split("\n")[:-1]
    except OSError:
        return []
    parsed = [json.loads(line) for line in lines]
    for record in parsed:
        record.pop("time", None)
    return [r for r in parsed if kind is None or r["kind"] == kind]


def losses(run_dir):
    return [(r["step"], r["loss"]) for r in records(run_dir, "train")]


def checkpoints(run_dir):
    folder = pathlib.Path(run_dir) / "checkpoints"
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    return [int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name)]


def writing(run_dir):
    """Checkpoints that are being written at this moment."""
    try:
        return [n for n in os.listdir(pathlib.Path(run_dir) / "checkpoints") if n.endswith(".tmp")]
    except OSError:
        return []


def resumed_at(job):
    found = re.search(r"resumed at step (\d+)", job.errors() + job.out.read_text())
    assert found, job.errors()
    return int(found.group(1))


def train(run_dir, ranks, *more, log, steps=60, resume=False):
    """Arguments of a small run with everything on that a resume has to bring back: dropout, Adam for
    the dense parameters and the tables, decay, sampled negatives, evaluation and early stopping."""
    sets = {
        "data.log": log, "threads": 1, "batch": 24, "steps": steps, "epochs": 0,
        "evaluate.every": "7 steps", "evaluate.stop_after": "'100 without ndcg@10'",
        "model.backbone.dropout": 0.2, "checkpoint.every": 5,
        "dense_optimizer.adamw.decay": "cosine",
    }
    sets.update(dict(pair.split("=", 1) for pair in more))
    arguments = ["train", SOURCE / "configs/runs/quickstart.yaml", "--run-dir", run_dir, "--json"]
    if ranks:
        arguments += ["--ranks", ranks]
    if resume:
        arguments.append("--resume")
    for key, value in sets.items():
        arguments += ["--set", f"{key}={value}"]
    return arguments
