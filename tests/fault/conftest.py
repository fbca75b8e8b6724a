import pathlib

import pytest
from program import PROGRAM, run


def pytest_collection_modifyitems(items):
    if not PROGRAM:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="TAUTLINE_PROGRAM names no program"))


@pytest.fixture(scope="session")
def log(tmp_path_factory):
    """A built synthetic log of 400 users."""
    folder = tmp_path_factory.mktemp("log")
    made = run(folder, "data", "synth", folder / "log.csv", "--users", 400, "--items", 150,
               "--events-mean", 12)
    assert made.status == 0, made.errors()
    made = run(folder, "data", "build", folder / "log.csv", folder / "log")
    assert made.status == 0, made.errors()
    return pathlib.Path(folder) / "log"
