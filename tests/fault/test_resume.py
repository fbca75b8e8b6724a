"""A run that was stopped goes on: on other ranks, after SIGTERM, under torchrun, and when it was over."""

import os
import re
import shutil
import signal
import socket
import sys

import pytest
from program import (NO_TRACE, SOURCE, Job, checkpoints, kill, losses, records, resumed_at, run, train,
                     wait_until)

EVERY_STEP = "evaluate.every=1 step"  # so that any step's end is an evaluation's


def tolerance(step, loss):
    """As tests/train/training_test.cpp derives it: roundings of a step add as the root of their number."""
    return 64 * 2.0**-24 * step * abs(loss)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def torchrun(ranks):
    program = os.path.join(os.path.dirname(sys.executable), "torchrun")
    if not os.access(program, os.X_OK):
        pytest.skip("torchrun is not installed")
    return [program, "--nproc-per-node", ranks, "--master-port", free_port(), "--no-python"]


@pytest.fixture(scope="module")
def whole(log, tmp_path_factory):
    """30 steps on 2 ranks that nobody disturbed, evaluated after each."""
    folder = tmp_path_factory.mktemp("whole")
    job = run(folder, *train(folder / "run", 2, EVERY_STEP, log=log, steps=30))
    assert job.status == 0, job.errors()
    return job.json(), records(folder / "run")


def expect_whole(job, run_dir, whole):
    assert job.status == 0, job.errors()
    assert job.json()["loss"] == whole[0]["loss"]
    assert job.json()["best_step"] == whole[0]["best_step"]
    assert records(run_dir) == whole[1]


def test_goes_on_with_fewer_and_more_ranks(log, tmp_path):
    steps = 0
    for ranks in (4, 2, 3):
        steps += 10
        job = run(tmp_path, *train(tmp_path / "parts", ranks, log=log, steps=steps, resume=steps > 10))
        assert job.status == 0, job.errors()
        if steps > 10:
            assert resumed_at(job) == steps - 10
        assert job.json()["ranks"] == ranks
    job = run(tmp_path, *train(tmp_path / "one", 1, log=log, steps=10))
    one, parts = losses(tmp_path / "one"), losses(tmp_path / "parts")
    assert [step for step, _ in parts] == list(range(1, 31))
    for (step, found), (_, expected) in zip(parts, one):
        assert abs(found - expected) <= tolerance(step, expected), step
    # No loss of memory at the seams: a lost optimiser state would show as a jump.
    values = [loss for _, loss in parts]
    assert values[10] < values[0] and values[20] < values[10]


def stop_in_mid_step(job, run_dir, pid, number=signal.SIGTERM):
    assert wait_until(lambda: len(losses(run_dir)) >= 8, job), job.errors()
    kill(pid, number)
    job.finish(60)


@pytest.mark.parametrize("whom, number", [("launcher", signal.SIGTERM), ("one rank", signal.SIGTERM),
                                          ("launcher", signal.SIGHUP)])
def test_a_signal_checkpoints_and_the_rest_has_the_same_bits(whom, number, whole, log, tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # not as nohup left it
    run_dir = tmp_path / "run"
    with Job(tmp_path, *train(run_dir, 2, EVERY_STEP, log=log, steps=30)) as job:
        assert wait_until(lambda: losses(run_dir), job), job.errors()
        stop_in_mid_step(job, run_dir, job.process.pid if whom == "launcher" else job.ranks()[1],
                         number)
    assert job.status == 0, job.errors()
    assert not [trace for trace in NO_TRACE if trace in job.errors()], job.errors()
    assert job.json()["interrupted"]
    step = job.json()["step"]
    assert 8 <= step < 30 and checkpoints(run_dir)[-1] == step
    again = run(tmp_path, *train(run_dir, 2, EVERY_STEP, log=log, steps=30, resume=True))
    assert resumed_at(again) == step
    expect_whole(again, run_dir, whole)


def test_sigterm_under_torchrun(whole, log, tmp_path):
    run_dir = tmp_path / "run"
    command = train(run_dir, 0, EVERY_STEP, log=log, steps=30)
    with Job(tmp_path, *command, launcher=torchrun(2)) as job:
        stop_in_mid_step(job, run_dir, job.process.pid)
    assert "rank 0 of 2 (local 0 of 2, node 0) by torchrun" in job.errors()
    step = checkpoints(run_dir)[-1]  # torchrun's own exit status says nothing here
    assert 8 <= step < 30 and len(losses(run_dir)) == step
    again = run(tmp_path, *command, "--resume", launcher=torchrun(2))
    assert resumed_at(again) == step
    expect_whole(again, run_dir, whole)


def test_a_finished_run_resumed_says_the_same(log, tmp_path):
    arguments = dict(log=log, steps=20)
    first = run(tmp_path, *train(tmp_path / "run", 1, **arguments))
    assert first.status == 0, first.errors()
    expected, written = first.json(), records(tmp_path / "run")
    again = run(tmp_path, *train(tmp_path / "run", 1, resume=True, **arguments))
    assert again.status == 0, again.errors()
    for key in ("step", "loss", "hr_at_10", "ndcg_at_10", "best_step", "stopped_early"):
        assert again.json()[key] == expected[key], key
    assert records(tmp_path / "run") == written


def test_a_run_that_stopped_early_stays_stopped(log, tmp_path):
    more = (EVERY_STEP, "evaluate.stop_after='2 without ndcg@10'", "dense_optimizer.adamw.lr=0.2")
    first = run(tmp_path, *train(tmp_path / "run", 1, *more, log=log, steps=400))
    assert first.status == 0, first.errors()
    expected = first.json()
    assert expected["stopped_early"] and expected["best_step"] < expected["step"]
    again = run(tmp_path, *train(tmp_path / "run", 1, *more, log=log, steps=400, resume=True))
    assert again.status == 0, again.errors()
    for key in ("step", "loss", "hr_at_10", "ndcg_at_10", "best_step", "stopped_early"):
        assert again.json()[key] == expected[key], key


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_resume_of_a_folder_without_a_run_is_refused(there, ranks, log, tmp_path):
    run_dir = tmp_path / "run"
    if there:
        run_dir.mkdir()
    job = run(tmp_path, *train(run_dir, ranks, log=log, steps=5, resume=True))
    assert job.status == 2, job.errors()
    says = "holds no run" if there else "is not there"
    assert job.errors().count(f"tautline: --resume: {run_dir} {says}") == 1, job.errors()
    assert run_dir.exists() == there and not checkpoints(run_dir)


def test_a_run_that_had_no_checkpoint_yet_says_that_it_starts_anew(log, tmp_path):
    run_dir = tmp_path / "run"
    assert run(tmp_path, *train(run_dir, 1, log=log, steps=5)).status == 0
    shutil.rmtree(run_dir / "checkpoints")
    job = run(tmp_path, *train(run_dir, 1, log=log, steps=5, resume=True))
    assert job.status == 0, job.errors()
    assert f"no checkpoint in {run_dir}/checkpoints yet: starting at step 0" in job.errors()
    assert checkpoints(run_dir) == [5]


def test_resume_without_a_config_takes_the_folders(log, tmp_path):
    run_dir = tmp_path / "run"
    first = run(tmp_path, *train(run_dir, 1, log=log, steps=5))
    assert first.status == 0, first.errors()
    saved = (run_dir / "run.yaml").read_text()
    alone = ["train", "--resume", "--run-dir", run_dir, "--json"]
    more = run(tmp_path, *alone, "--ranks", 2, "--set", "steps=8")
    assert more.status == 0, more.errors()
    assert resumed_at(more) == 5 and more.json()["step"] == 8
    nothing = run(tmp_path, "train", "--resume", "--run-dir", tmp_path)
    assert nothing.status == 2 and f"there is no {tmp_path}/run.yaml" in nothing.errors()
    without_log = run(tmp_path, "train", SOURCE / "configs/runs/log.yaml", "--resume", "--run-dir", run_dir)
    assert without_log.status == 2, without_log.errors()
    assert "data.log is missing" in without_log.errors() and "leave" in without_log.errors()
    # What is refused leaves the folder's own run as it was.
    refused = run(tmp_path, *alone, "--set", "seed=7")
    assert refused.status == 2 and "seed" in refused.errors()
    assert (run_dir / "run.yaml").read_text() == saved.replace("steps: 5", "steps: 8").replace("ranks: 1", "ranks: 2")


def launched(world):
    """A launcher that sets PyTorch's names and starts one rank."""
    return {"RANK": "0", "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def test_the_folder_keeps_how_many_ranks_ran(log, tmp_path):
    run_dir = tmp_path / "run"
    assert run(tmp_path, *train(run_dir, 2, log=log, steps=5)).status == 0
    alone = ["train", "--resume", "--run-dir", run_dir, "--json", "--set"]
    again = run(tmp_path, *alone, "steps=7")
    assert again.status == 0, again.errors()
    assert again.json()["ranks"] == 2 and resumed_at(again) == 5
    # A launcher starts as many as it likes ...
    one = run(tmp_path, *alone, "steps=8", env=launched(1))
    assert one.status == 0, one.errors()
    assert one.json()["ranks"] == 1
    assert "ranks: 0" in (run_dir / "run.yaml").read_text()
    # ... but not other than somebody asks for.
    for more in (["--ranks", 2], ["--set", "ranks=2"]):
        refused = run(tmp_path, *alone, "steps=9", *more, env=launched(1))
        assert refused.status == 2, refused.errors()
        assert "ranks: 2 were asked for, but the launcher (environment) started 1" in refused.errors()
    own = tmp_path / "own.yaml"
    own.write_text((run_dir / "run.yaml").read_text().replace("ranks: 0", "ranks: 3")
                   .replace("model: ./model.yaml", f"model: {run_dir}/model.yaml"))
    refused = run(tmp_path, "train", own, "--resume", "--run-dir", run_dir, env=launched(1))
    assert refused.status == 2 and "ranks: 3 were asked for" in refused.errors(), refused.errors()
    three = run(tmp_path, "train", own, "--resume", "--run-dir", run_dir, "--json", "--set", "steps=9")
    assert three.status == 0 and three.json()["ranks"] == 3, three.errors()
    single = run(tmp_path, *alone, "steps=10", "--ranks", 1)
    assert single.status == 0 and single.json()["ranks"] == 1, single.errors()
    assert "ranks: 1\n" in (run_dir / "run.yaml").read_text()


def test_a_resume_that_is_refused_prints_no_plan(log, tmp_path):
    plan = "dense gradients in buckets of"
    run_dir = tmp_path / "run"
    first = run(tmp_path, *train(run_dir, 1, log=log, steps=5))
    assert plan in first.errors()
    for change in ("seed=7", "model.backbone.width=64"):
        refused = run(tmp_path, *train(run_dir, 1, change, log=log, steps=8, resume=True))
        assert refused.status == 2, refused.errors()
        assert plan not in refused.errors() and refused.errors().count("\n") == 1, refused.errors()
    again = run(tmp_path, *train(run_dir, 1, log=log, steps=8, resume=True))
    assert again.status == 0 and plan in again.errors(), again.errors()


def test_the_report_of_a_resumed_run_shows_the_whole_run(log, tmp_path):
    run_dir = tmp_path / "run"
    assert run(tmp_path, *train(run_dir, 1, log=log, steps=20)).status == 0
    assert "since step" not in (run_dir / "report.html").read_text()
    again = run(tmp_path, *train(run_dir, 1, log=log, steps=30, resume=True))
    assert again.status == 0, again.errors()
    page = (run_dir / "report.html").read_text()
    assert "Mean over 10 steps since step 20. Waiting" in page
    assert "rates, times and loads since step 20" in page
    # The loss is drawn over all 30 steps: as wide as that of a run in one piece.
    assert run(tmp_path, *train(tmp_path / "whole", 1, log=log, steps=30)).status == 0
    assert curve(page) and curve(page) == curve((tmp_path / "whole" / "report.html").read_text())


def curve(page):
    """The paths of the first chart, the training loss."""
    chart = page[page.index("Training loss</h3>"):]
    return re.findall(r'<(?:path|polyline)[^>]*>', chart[:chart.index("</svg>")])


def test_a_short_run_ends_with_a_checkpoint(log, tmp_path):
    job = run(tmp_path, *train(tmp_path / "run", 1, "checkpoint.every=1000000", log=log, steps=3))
    assert job.status == 0, job.errors()
    assert checkpoints(tmp_path / "run") == [3]


def test_another_log_of_equal_counts_is_refused(log, tmp_path):
    """Every item has another name: users, events, times and sizes stay."""
    run_dir = tmp_path / "run"
    lines = (log.parent / "log.csv").read_text().split("\n")
    column = lines[0].split(",").index("item")
    for at, line in enumerate(lines[1:], 1):
        fields = line.split(",")
        if len(fields) > column:
            fields[column] = "x" + fields[column]
            lines[at] = ",".join(fields)
    other = tmp_path / "other"
    (tmp_path / "other.csv").write_text("\n".join(lines))
    assert run(tmp_path, "data", "build", tmp_path / "other.csv", other).status == 0
    assert run(tmp_path, *train(run_dir, 1, log=log, steps=5)).status == 0
    job = run(tmp_path, *train(run_dir, 2, log=other, steps=8, resume=True))
    assert job.status == 2, job.errors()
    assert "on a log with items_digest" in job.errors()


def test_a_run_that_is_alive_keeps_its_folder(log, tmp_path):
    run_dir = tmp_path / "run"
    (tmp_path / "second").mkdir()
    with Job(tmp_path, *train(run_dir, 2, "evaluate.every=end", log=log, steps=100_000)) as job:
        assert wait_until(lambda: checkpoints(run_dir), job), job.errors()
        for resume in (True, False):
            second = run(tmp_path / "second", *train(run_dir, 2, log=log, resume=resume))
            assert second.status == 2, second.errors()
            assert f"the run's folder {run_dir} is in use by pid " in second.errors()
        kill(job.process.pid, signal.SIGTERM)
        job.finish()
    assert job.status == 0, job.errors()
    steps = len(losses(run_dir))
    again = run(tmp_path, *train(run_dir, 2, log=log, steps=steps + 5, resume=True))
    assert again.status == 0, again.errors()
    assert resumed_at(again) == steps


def test_checkpoints_in_a_folder_of_their_own(log, tmp_path):
    elsewhere = f"checkpoint.folder={tmp_path}/elsewhere"
    job = run(tmp_path, *train(tmp_path / "run", 0, elsewhere, log=log, steps=10))
    assert job.status == 0, job.errors()
    assert not (tmp_path / "run/checkpoints").exists()
    assert (tmp_path / "elsewhere/step-00000010").is_dir()
    refused = run(tmp_path, *train(tmp_path / "other", 0, elsewhere, log=log, steps=10))
    assert refused.status == 2
    assert f"checkpoint.folder: {tmp_path}/elsewhere already holds" in refused.errors()
    again = run(tmp_path, *train(tmp_path / "run", 2, elsewhere, log=log, steps=15, resume=True))
    assert again.status == 0, again.errors()
    assert resumed_at(again) == 10


def test_a_folder_in_a_bucket_is_for_checkpoints_only(log, tmp_path):
    job = run(tmp_path, *train("s3://bucket/run", 0, log=log))
    assert job.status == 2
    assert "give a path, and the URI as checkpoint.folder" in job.errors()


def test_a_folder_goes_on_with_its_own_model_from_anywhere(log, tmp_path):
    """And with its own checkpoints, though they were named from where the run began."""
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    relative = os.path.relpath(tmp_path / "apart", SOURCE)
    job = run(tmp_path, *train(run_dir, 0, f"checkpoint.folder={relative}", log=log, steps=10))
    assert job.status == 0, job.errors()
    model = (run_dir / "model.yaml").read_text()
    elsewhere.mkdir()
    (elsewhere / "model.yaml").write_text(model.replace("dropout: 0.2", "dropout: 0.5"))
    shutil.move(run_dir, elsewhere / "moved")
    job = run(tmp_path, "train", "--resume", "--run-dir", "moved", "--set", "steps=15", cwd=elsewhere)
    assert job.status == 0, job.errors()
    assert resumed_at(job) == 10
    assert "dropout" not in job.errors()
    assert (elsewhere / "moved/model.yaml").read_text() == model
    (elsewhere / "moved/model.yaml").unlink()
    job = run(tmp_path, "train", "--resume", "--run-dir", "moved", "--set", "steps=20", cwd=elsewhere)
    assert job.status == 2
    assert "there is no model file" in job.errors()


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_checkpoints_of_a_run_that_is_alive_are_nobody_elses(form, log, tmp_path):
    with Job(tmp_path, *train(tmp_path / "run", 0, "evaluate.every=end", log=log, steps=100_000)) as job:
        assert wait_until(lambda: checkpoints(tmp_path / "run"), job), job.errors()
        (tmp_path / "other").mkdir()
        folder = "checkpoint.folder=" + form.format(tmp_path / "run/checkpoints")
        other = run(tmp_path / "other", *train(tmp_path / "other/run", 0, folder, log=log, resume=True))
        assert other.status == 2, other.errors()
        assert f"checkpoint.folder: {tmp_path}/run/checkpoints is in use by pid " in other.errors()
        kill(job.process.pid, signal.SIGTERM)
        job.finish()
    assert job.status == 0, job.errors()


def test_a_log_that_is_built_anew_meanwhile_is_told(log, tmp_path):
    mine = shutil.copytree(log, tmp_path / "mine")
    with Job(tmp_path, *train(tmp_path / "run", 0, "evaluate.every=end", log=mine, steps=1000)) as job:
        assert wait_until(lambda: checkpoints(tmp_path / "run"), job), job.errors()
        (tmp_path / "other.csv").write_text("user,item,time\n" + "".join(f"u{i % 7},i{i % 5},{i}\n" for i in range(99)))
        (tmp_path / "build").mkdir()
        built = run(tmp_path / "build", "data", "build", tmp_path / "other.csv", mine, "--overwrite")
        assert built.status == 0, built.errors()
        job.finish()
    assert job.status == 2, job.errors()
    assert "was built anew while this run trained on it" in job.errors()
    assert "is good" in job.errors()


def test_a_built_log_is_no_folder_for_a_run(log, tmp_path):
    names = sorted(os.listdir(log))
    for run_dir, more in ((log, ()), (tmp_path / "run", (f"checkpoint.folder={log}",))):
        job = run(tmp_path, *train(run_dir, 0, *more, log=log))
        assert job.status == 2
        assert f"{log} is a built log; a run's files would lie among its own" in job.errors()
        assert sorted(os.listdir(log)) == names
