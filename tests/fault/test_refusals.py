"""What no run can be made of: one sentence, status 2 and nothing on standard output, also where it would
take more memory or threads than a machine has."""

import os
import resource

import pytest
from program import expect_user_error, run, train


def little_memory():
    """In the child: what would take a machine down fails by itself."""
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


@pytest.mark.parametrize("change, says", [
    ("threads=1_000_000", "threads: 1000000 are too many: this machine has"),
    ("data.workers=1_000_000", "data.workers must be 256 at most, found 1_000_000"),
    ("data.prefetch=2_147_483_647", "data.prefetch must be 1024 at most"),
    ("batch=9_223_372_036_854_775_807", "batch must be 1_073_741_824 at most"),
    ("batch_tokens=9_223_372_036_854_775_807", "batch_tokens must be"),
    ("ranks=2_147_483_647", "ranks must be 1_000_000 at most"),
    ("model.backbone.width=1_000_000_000", "backbone.width must be 1_048_576 at most"),
    ("model.backbone.width=1_000_000", "dense parameters, which with gradients and optimiser take"),
    ("model.backbone.width=-8", "backbone.width must be 1 or more"),
    ("model.backbone.layers=1_000_000_000", "backbone.layers must be 10_000 at most"),
    ("model.backbone.heads=9_223_372_036_854_775_807", "backbone.heads"),
    ("model.backbone.mlp_width=9_223_372_036_854_775_807", "backbone.mlp_width must be"),
    ("model.features.0.max_length=9_223_372_036_854_775_807", "features.0.max_length must be"),
    ("model.tables.item.rows=9_223_372_036_854_775_807", "tables.item.rows must be"),
    ("model.tables.item.rows=1_000_000_000_000", "fits nowhere on 1 rank"),
    ("model.tables.item.dim=9_223_372_036_854_775_807", "tables.item.dim must be"),
    ("model.tables.item.init_std=-1", "init_std of the table 'item' must be 0 or more"),
    ("plan.balance.base_batch=9_223_372_036_854_775_807", "plan.balance.base_batch must be"),
    ("plan.collectives.dense_gradient.bucket=1e30 TiB", "a bucket holds 1 TiB at most"),
    ("evaluate.every=1e300 epochs", "evaluate.every must be 1e9 epochs at most"),
])
def test_absurd_numbers_are_one_sentence(change, says, log, tmp_path):
    job = run(tmp_path, *train(tmp_path / "run", 0, change, log=log), preexec_fn=little_memory)
    expect_user_error(job, says, lines=1)
    assert job.out.read_text() == ""


def test_memory_that_is_not_there_is_no_broken_invariant(log, tmp_path):
    """Too much for the limit that this process has, though the machine may have it."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (7 << 29, 7 << 29))  # the libraries alone map 2.5 GiB
    rows = (1 << 30) // (32 * 4)  # three times 1 GiB with its optimiser
    job = run(tmp_path, *train(tmp_path / "run", 0, f"model.tables.item.rows={rows}", log=log), preexec_fn=limit)
    expect_user_error(job, "memory")


LONG = "x" * 300


@pytest.mark.parametrize("place, resume", [("run", False), ("run_dir", False), ("run_dir", True), ("alone", True),
                                           ("log", False), ("model", False)])
@pytest.mark.parametrize("name, says", [
    (LONG, "File name too long"), ("/".join(["a" * 200] * 30), "File name too long"),
    ("loop", "Too many levels of symbolic links"), ("loop/a", "Too many levels of symbolic links"),
    ("secret/a", "Permission denied")])
def test_paths_that_cannot_be_looked_at(place, resume, name, says, log, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "secret").mkdir(mode=0)
    path = tmp_path / name
    arguments = [str(a) for a in train(path if place == "run_dir" else tmp_path / "run", 0, log=log,
                                       resume=resume)]
    if place == "run":
        arguments[1] = str(path)
    if place == "alone":
        arguments = ["train", "--resume", "--run-dir", str(path)]
    if place in ("log", "model"):
        arguments += ["--set", f"{ {'log': 'data.log', 'model': 'model'}[place] }={path}"]
    # Root reads any folder, unless that is taken away.
    launcher = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    job = run(tmp_path, *arguments, launcher=launcher)
    (tmp_path / "secret").chmod(0o755)
    expect_user_error(job, "there is no log at" if place == "log" and "loop" in name else says, lines=1)
    assert job.out.read_text() == ""


def test_a_folder_that_is_not_utf8_is_refused_before_anything_is_done(log, tmp_path):
    run_dir = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    job = run(tmp_path, *train(run_dir, 0, log=log, steps=5))
    expect_user_error(job, "which is not UTF-8", "--run-dir", lines=1)
    assert not os.path.exists(run_dir)


@pytest.mark.parametrize("sets, says", [
    (["="], "--set =: expected key=value"),
    ([""], "expected key=value"),
    (["=5"], "--set =5: expected key=value"),
    (["batch="], "'batch' expects an integer such as 20_000, found nothing"),
    (["batch=8", "batch=x"], "--set batch=x: 'batch' expects an integer"),
    (["data.log="], "data.log"),
    (["b\u00e4tch=5"], "unknown key 'b\u00e4tch'"),
    (["batch=\u4e94"], "found the text '\u4e94'"),
    ([".batch=5"], "has an empty part"),
    (["batch..x=5"], "has an empty part"),
    (["batch=[1"], "not valid YAML"),
    (["batch={a: b"], "not valid YAML"),
    (["batch.x.y=5"], "'batch' expects an integer"),
    (["model.features.99.name=x"], "item 99 of a list of 1"),
    (["batch=" + "9" * 100_000], "'batch' expects an integer"),
    (["x" * 100_000 + "=1"], "unknown key 'xxx"),
    (["seed=" + "[" * 60_000], "--set seed="),
    (["model.name=&a [*a]"], "--set model.name="),
])
def test_odd_sets_are_one_short_sentence(sets, says, log, tmp_path):
    arguments = train(tmp_path / "run", 0, log=log, steps=5)
    for text in sets:
        arguments += ["--set", text]
    job = run(tmp_path, *arguments, preexec_fn=little_memory)
    expect_user_error(job, says, lines=1)
    assert len(job.errors()) < 1000, len(job.errors())
    assert job.out.read_text() == ""


def test_of_two_sets_the_last_counts(log, tmp_path):
    job = run(tmp_path, *train(tmp_path / "run", 0, log=log, steps=50), "--set", "steps=3", "--set", "steps=4")
    assert job.status == 0 and job.json()["step"] == 4, job.errors()
