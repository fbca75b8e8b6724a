"""kill -9 at every kind of moment, then --resume: the bits of the run that nobody disturbed.

A few kills by default; TAUTLINE_FAULT_KILLS=all does all 20 (`make test-fault`)."""

import os
import random
import re
import signal
import time

import pytest
from program import (END_SECONDS, NO_TRACE, Job, alive, checkpoints, kill, records, resumed_at, run,
                     train, wait_until, writing)

RANKS = 4
MOMENTS = ["after the first checkpoint", "during a checkpoint", "during evaluation", "at random"]
VICTIMS = [0, 1, 2, 3, "launcher"]
FEW = [(MOMENTS[0], 0), (MOMENTS[1], 2), (MOMENTS[2], 1), (MOMENTS[3], "launcher")]
ALL = [(moment, victim) for moment in MOMENTS for victim in VICTIMS]
KILLS = ALL if os.environ.get("TAUTLINE_FAULT_KILLS") == "all" else FEW


@pytest.fixture(scope="session")
def undisturbed(log, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    job = run(folder, *train(folder / "run", RANKS, log=log))
    assert job.status == 0, job.errors()
    return job.json(), records(folder / "run")


def evaluating(run_dir):
    """Rank 0 has reported a step whose evaluation it has not: it is in it."""
    last = records(run_dir)[-1:]
    return bool(last) and last[0]["kind"] == "train" and last[0]["step"] % 7 == 0


def moment_has_come(moment, run_dir):
    if not checkpoints(run_dir):
        return False
    if moment == "during a checkpoint":
        return bool(writing(run_dir))
    if moment == "during evaluation":
        return evaluating(run_dir)
    return True


def kill_one(job, victim):
    """SIGKILL; returns the pids that have to be gone soon, and the victim's."""
    pids = job.ranks()
    assert sorted(pids) == list(range(RANKS)), job.errors()
    pid = job.process.pid if victim == "launcher" else pids[victim]
    kill(pid, signal.SIGKILL)
    return list(pids.values()), pid


@pytest.mark.parametrize("moment, victim", KILLS)
def test_resume_ends_with_the_bits_of_the_undisturbed_run(moment, victim, undisturbed, log, tmp_path):
    run_dir = tmp_path / "run"
    with Job(tmp_path, *train(run_dir, RANKS, log=log)) as job:
        assert wait_until(lambda: moment_has_come(moment, run_dir), job), job.errors()
        if moment == "at random":
            time.sleep(random.Random(f"{victim}").uniform(0, 0.5))
        pids, pid = kill_one(job, victim)
        killed = time.monotonic()
        job.finish(END_SECONDS)
        while any(alive(p) for p in pids):
            assert time.monotonic() - killed < END_SECONDS, "ranks outlive their job"
            time.sleep(0.01)
        print(f"{moment}, {victim}: ended {time.monotonic() - killed:.2f} s after the kill")
    errors = job.errors()
    if victim == "launcher":
        assert job.status == -signal.SIGKILL
    else:
        assert job.status == 3, errors
        assert f"tautline: rank {victim} (pid {pid}) was killed by SIGKILL\n" in errors
    assert not [trace for trace in NO_TRACE if trace in errors], errors
    assert checkpoints(run_dir)

    again = run(tmp_path, *train(run_dir, RANKS, log=log, resume=True))
    assert again.status == 0, again.errors()
    assert resumed_at(again) > 0
    expected, expected_records = undisturbed
    found = again.json()
    same = [key for key in expected if re.match(r"step$|epoch|loss|hr_|ndcg_|best_|stopped|users", key)]
    assert {key: found[key] for key in same} == {key: expected[key] for key in same}
    assert records(run_dir) == expected_records  # every step's loss, every evaluation
