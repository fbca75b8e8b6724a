"""configs/models/clicks.yaml learns both its heads on the synthetic log with its labels."""

from program import SOURCE, records, run


def test_two_heads_learn_on_the_synthetic_log(tmp_path):
    log = tmp_path / "log"
    made = run(tmp_path, "data", "synth", tmp_path / "log.csv", "--users", 600, "--items", 200)
    assert made.status == 0, made.errors()
    made = run(tmp_path, "data", "build", tmp_path / "log.csv", log, "--action", "action",
               "--label", "clicked")
    assert made.status == 0, made.errors()
    job = run(tmp_path, "train", SOURCE / "configs/runs/quickstart.yaml", "--json", "--ranks", 2,
              "--run-dir", tmp_path / "run", "--set", "model=configs/models/clicks.yaml",
              "--set", f"data.log={log}", "--set", "threads=1", "--set", "epochs=12",
              "--set", "batch=48", "--set", "evaluate={every: end, metrics: [auc]}")
    assert job.status == 0, job.errors()
    result = job.json()
    # A coin has AUC .5 and entropy 1; 600 users' labels have a standard error of .02.
    assert result["clicked_auc"] > 0.56 and result["clicked_normalized_entropy"] < 1
    assert result["ndcg_at_10"] > 2 * result["popularity_ndcg_at_10"]
    tables = job.errors()
    assert "clicked_auc" in tables and "ndcg_at_10" not in tables  # only what was asked for
    assert "ndcg_at_10" in records(tmp_path / "run", "test")[0]
