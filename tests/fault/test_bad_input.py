"""Whole programs with bad input: the exit status, one clear sentence, and nothing lost.

What a unit test of a folder already covers (tests/data, tests/cli, tests/train) is here only as far as
the whole program adds to it: what a user with several ranks sees, and that checkpoints stay whole."""

import csv
import json
import os
import resource
import shutil
import subprocess

import pytest
from program import Job, SOURCE, checkpoints, expect_user_error, losses, resumed_at, run, train


def write_log(path, rows, header=("user", "item", "time")):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


ROWS = [(user, item, 10 * user + item) for user in range(20) for item in range(12)]


@pytest.fixture
def trained(log, tmp_path):
    """A run's folder with checkpoints of steps 5 and 10."""
    job = run(tmp_path, *train(tmp_path / "run", 2, log=log, steps=10))
    assert job.status == 0, job.errors()
    assert checkpoints(tmp_path / "run") == [5, 10] or checkpoints(tmp_path / "run")[-1] == 10
    return tmp_path / "run"


def test_a_delimiter_that_is_missing_is_asked_for(tmp_path):
    (tmp_path / "log.csv").write_text("who;what;when\n" + "1;2;3\n" * 9)
    job = run(tmp_path, "data", "build", tmp_path / "log.csv", tmp_path / "built", "--user", "who", "--item", "what", "--time", "when")
    expect_user_error(job, "no column 'who'", "is --delimiter ';' missing?", lines=1)


def test_an_early_error_ends_a_build_that_still_reads_ahead(tmp_path):
    log = write_log(tmp_path / "log.csv", [(u, u % 7, "2020-01-01 10:00") for u in range(200_000)])
    jobs = []
    for i in range(6):
        (tmp_path / str(i)).mkdir()
        jobs.append(Job(tmp_path / str(i), "data", "build", log, tmp_path / f"built{i}"))
    for job in jobs:
        expect_user_error(job.finish(60), "log.csv, line 2", "timestamp as text", lines=1)


def closed(*descriptors):
    """In the child, before the program: these descriptors are closed."""
    return lambda: [os.close(d) for d in descriptors]


@pytest.mark.parametrize("descriptors, status", [((0,), 0), ((2,), 0), ((1,), 2), ((0, 1, 2), 2)])
def test_closed_standard_descriptors_are_no_other_files(descriptors, status, log, tmp_path):
    job = run(tmp_path, *train(tmp_path / "run", 1, log=log, steps=10), preexec_fn=closed(*descriptors))
    assert job.status == status, job.errors()
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        json.loads(line)
    again = run(tmp_path, *train(tmp_path / "run", 1, log=log, steps=12, resume=True))  # the checkpoint is whole
    assert again.status == 0 and resumed_at(again) == 10, again.errors()


def test_a_reader_that_leaves_does_not_end_a_run(log, tmp_path):
    read, write = os.pipe()
    os.close(read)
    job = Job(tmp_path, *train(tmp_path / "run", 1, log=log, steps=10), preexec_fn=lambda: os.dup2(write, 2))
    os.close(write)
    assert job.finish().status == 0
    assert checkpoints(tmp_path / "run")[-1] == 10


def test_runs_that_begin_in_one_second_have_folders_of_their_own(log, tmp_path):
    jobs = []
    for i in range(3):
        (tmp_path / str(i)).mkdir()
        sets = train("unused", 1, log=log, steps=5)
        at = sets.index("--run-dir")
        jobs.append(Job(tmp_path / str(i), *sets[:at], *sets[at + 2:]))
    folders = [job.finish().json()["run_dir"] for job in jobs]
    assert len(set(folders)) == 3, folders
    for folder in folders:
        shutil.rmtree(SOURCE / folder)
    if not os.listdir(SOURCE / "runs"):
        (SOURCE / "runs").rmdir()


@pytest.mark.parametrize("name, header, change, options, says", [
    ("missing column", None, None, ["--user", "usr"], ["'usr'", "'user'"]),
    ("text as time", None, lambda r: (*r[:2], "2020-01-01 10:00"), [], ["log.csv, line 2", "'time'", "2020-01-01"]),
    ("NaN label", ("user", "item", "time", "click"), lambda r: (*r, "nan"), ["--label", "click"],
     ["log.csv, line 2", "'click'", "NaN"]),
])
def test_data_build_refuses(name, header, change, options, says, tmp_path):
    rows = [change(row) if change else row for row in ROWS]
    log = write_log(tmp_path / "log.csv", rows, header or ("user", "item", "time"))
    job = run(tmp_path, "data", "build", log, tmp_path / "built", *options)
    expect_user_error(job, *says, lines=1)
    assert not (tmp_path / "built").exists() or not os.listdir(tmp_path / "built")


@pytest.mark.parametrize("rows", [[], [(7, 3, 1)], [(7, 3, 1), (8, 3, 2)]],
                         ids=["empty", "one event", "users of one event"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_logs_with_nothing_to_learn(rows, ranks, tmp_path):
    log = write_log(tmp_path / "log.csv", rows)
    built = run(tmp_path, "data", "build", log, tmp_path / "log")
    if built.status != 0:
        expect_user_error(built, "log.csv", lines=1)
        return
    job = run(tmp_path, *train(tmp_path / "run", ranks, log=tmp_path / "log"))
    expect_user_error(job, tmp_path / "log")


def test_a_user_with_one_event_is_no_harm(tmp_path):
    log = write_log(tmp_path / "log.csv", [*ROWS, (99, 3, 5)])
    assert run(tmp_path, "data", "build", log, tmp_path / "log").status == 0
    job = run(tmp_path, *train(tmp_path / "run", 3, log=tmp_path / "log", steps=4))
    assert job.status == 0, job.errors()
    assert len(losses(tmp_path / "run")) == 4


@pytest.fixture
def own_log(log, tmp_path):
    return shutil.copytree(log, tmp_path / "own")


def shard(log):
    return sorted(log.rglob("*.parquet"))[0]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_parquet_part_cut_short(ranks, own_log, tmp_path):
    part = shard(own_log)
    os.truncate(part, part.stat().st_size // 2)
    job = run(tmp_path, *train(tmp_path / "run", ranks, log=own_log))
    expect_user_error(job, part.name)
    assert not checkpoints(tmp_path / "run")


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_id_beyond_the_table(ranks, log, tmp_path):
    job = run(tmp_path, *train(tmp_path / "run", ranks, "model.tables.item.rows=20", log=log))
    expect_user_error(job, "item", "20")


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_plan_for_other_ranks(ranks, log, tmp_path):
    plan = tmp_path / "plan.yaml"
    command = train(tmp_path / "run", 0, log=log)
    made = run(tmp_path, "plan", command[1], "--ranks", 2, "--out", plan, "--set", f"data.log={log}")
    assert made.status == 0, made.errors()
    job = run(tmp_path, *train(tmp_path / "run", ranks, f"plan.file={plan}", log=log))
    expect_user_error(job, f"made for 2 ranks, not for {ranks}")


def test_a_typo_beside_ranks(log, tmp_path):
    job = run(tmp_path, *train(tmp_path / "run", 3, "checkpoint.evry=5", log=log))
    expect_user_error(job, "did you mean 'every'?", lines=1)


def test_a_device_that_is_not_there(log, tmp_path):
    job = run(tmp_path, *train(tmp_path / "run", 3, "device=cuda", log=log),
              env={"CUDA_VISIBLE_DEVICES": ""})
    expect_user_error(job, "no CUDA device", lines=1)


def damage(run_dir, step):
    part = sorted((run_dir / "checkpoints" / f"step-{step:08}").glob("*.safetensors"))[-1]
    with open(part, "r+b") as file:
        file.seek(-3, os.SEEK_END)
        byte = file.read(1)
        file.seek(-3, os.SEEK_END)
        file.write(bytes([byte[0] ^ 4]))
    return part


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_damaged_checkpoint_is_refused_by_name_and_skipped_on_request(ranks, trained, log, tmp_path):
    part = damage(trained, 10)
    before = checkpoints(trained)
    job = run(tmp_path, *train(trained, ranks, log=log, steps=12, resume=True))
    expect_user_error(job, part, "checkpoint.fallback")
    assert checkpoints(trained) == before
    job = run(tmp_path, *train(trained, ranks, "checkpoint.fallback=true", log=log, steps=12, resume=True))
    assert job.status == 0, job.errors()
    assert part.name in job.errors()
    assert resumed_at(job) == before[-2]
    assert [step for step, _ in losses(trained)] == list(range(1, 13))


FULL = "No space left on device"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("as_json", [True, False])
def test_files_of_the_end_that_cannot_be_written_cost_no_results(ranks, as_json, log, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for name in ("timeline.json", "report.html", f"timeline-rank-{ranks - 1}.jsonl"):
        (run_dir / name).symlink_to("/dev/full")
    arguments = train(run_dir, ranks, log=log, steps=5)
    if not as_json:
        arguments.remove("--json")
    job = run(tmp_path, *arguments)
    expect_user_error(job, f"cannot write {run_dir}/report.html: {FULL}; ",
                      f"cannot write {run_dir}/timeline-rank-{ranks - 1}.jsonl: {FULL}; ",
                      f"the checkpoint of step 5 in {run_dir} is good")
    if as_json:
        assert job.json()["step"] == 5 and job.json()["ndcg_at_10"] is not None
    else:
        assert "ndcg_at_10" in job.out.read_text()
    assert checkpoints(run_dir) == [5]
    again = run(tmp_path, *train(run_dir, ranks, log=log, steps=7, resume=True))
    assert resumed_at(again) == 5


def test_a_last_metric_that_cannot_be_written_costs_no_results(log, tmp_path):
    """A limit on the size of files that metrics.jsonl reaches with its last line, the test's."""
    more = ("checkpoint.every=1000", "evaluate.every=end", "evaluate.stop_after=never",
            "model.tables.item.dim=8", "model.backbone.width=8")
    whole = run(tmp_path, *train(tmp_path / "whole", 1, *more, log=log, steps=1500))
    assert whole.status == 0, whole.errors()
    lines = (tmp_path / "whole" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    limit = sum(map(len, lines)) - len(lines[-1]) // 2
    assert max(p.stat().st_size for p in (tmp_path / "whole" / "checkpoints").rglob("*")) < limit // 2
    run_dir = tmp_path / "run"
    job = run(tmp_path, *train(run_dir, 1, *more, log=log, steps=1500),
              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    expect_user_error(job, f"cannot write {run_dir}/metrics.jsonl: File too large",
                      f"the checkpoint of step 1500 in {run_dir} is good")
    for key in ("loss", "ndcg_at_10", "hr_at_10"):
        assert job.json()[key] == whole.json()[key]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_result_that_cannot_be_printed_is_no_success(ranks, log, tmp_path):
    job = run(tmp_path, *train(tmp_path / "run", ranks, log=log, steps=5), out="/dev/full")
    expect_user_error(job, "standard output cannot be written: No space left on device")
    assert checkpoints(tmp_path / "run") == [5]


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_full_disk_during_a_checkpoint(ranks, log, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk],
                             capture_output=True).returncode == 0
    if not mounted:
        pytest.skip("mounting a small disk needs root")
    try:
        run_dir = disk / "run"
        first = run(tmp_path, *train(run_dir, ranks, log=log, steps=5))
        assert first.status == 0, first.errors()
        room = os.statvfs(disk)
        with open(disk / "fill", "wb") as fill:
            fill.write(bytes(room.f_bavail * room.f_frsize - (20 << 10)))
        job = run(tmp_path, *train(run_dir, ranks, log=log, steps=40, resume=True))
        expect_user_error(job, "No space left on device", disk)
        assert checkpoints(run_dir)[-1] >= 5
        os.remove(disk / "fill")
        again = run(tmp_path, *train(run_dir, ranks, log=log, steps=12, resume=True))
        assert again.status == 0, again.errors()
        assert resumed_at(again) >= 5
    finally:
        subprocess.run(["umount", disk], check=True)
