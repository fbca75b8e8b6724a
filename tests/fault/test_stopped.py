"""Stopped by Ctrl-Z or SIGSTOP for longer than a silent rank is believed to live, and set going again."""

import os
import signal
import subprocess
import time

import pytest
from program import PROGRAM, SOURCE, Job, alive, kill, losses, train, wait_until

SECONDS = 17  # a rank that is silent for 15 is taken for dead


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGSTOP])
def test_a_stopped_launcher_goes_on(number, log, tmp_path):
    with Job(tmp_path, *train(tmp_path / "run", 2, log=log)) as job:
        assert wait_until(lambda: len(losses(tmp_path / "run")) > 3, job), job.errors()
        ranks = job.ranks().values()
        kill(job.process.pid, number)
        assert wait_until(lambda: state(job.process.pid) == "T", job, 5)
        if number == signal.SIGTSTP:  # as a shell's: the ranks are not left to run without it
            assert wait_until(lambda: all(state(pid) == "T" for pid in ranks), job, 5)
        time.sleep(SECONDS)
        assert all(alive(pid) for pid in ranks), job.errors()
        kill(job.process.pid, signal.SIGCONT)
        job.finish(60)
    assert job.status == 0, job.errors()
    assert len(losses(tmp_path / "run")) == 60


@pytest.mark.parametrize("ranks, status", [(0, -signal.SIGTERM), (2, 3)])
def test_the_third_signal_kills_one_that_nobody_reads(ranks, status, log, tmp_path):
    read, write = os.pipe()
    os.set_blocking(write, False)
    with open(read, "rb"), open(write, "wb", buffering=0) as full:
        while full.write(b"x" * 4096):
            pass
        os.set_blocking(write, True)
        arguments = map(str, train(tmp_path / "run", ranks, log=log))
        process = subprocess.Popen([PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=full, stderr=full, cwd=SOURCE)
        try:
            time.sleep(3)
            for _ in range(2):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == status
        finally:
            process.kill()
            process.wait()
