"""What `make quickstart LOG=...` hands to `tautline data build`; a stub stands for the program."""

import os
import subprocess

import pytest
from program import SOURCE

STUB = """#!/bin/sh
printf '%s|' "$@" >> "$STUB_LOG"
echo >> "$STUB_LOG"
"""


@pytest.fixture
def stub(tmp_path):
    path = tmp_path / "tautline"
    path.write_text(STUB)
    path.chmod(0o755)
    return path


def built(tmp_path):
    """Arguments of `data build`, without the log and its folder."""
    calls = [line.split("|")[:-1] for line in (tmp_path / "calls").read_text().splitlines()]
    assert [call[:2] for call in calls[:1]] == [["data", "build"]] and calls[1][0] == "train"
    return calls[0][4:]


VARIABLES = ("USER_COLUMN", "ITEM_COLUMN", "TIME_COLUMN", "DELIMITER", "TIME_UNIT")


def environment(tmp_path, **more):
    clean = {k: v for k, v in os.environ.items() if k not in (*VARIABLES, "USER", "ITEM", "TIME", "MAKEFLAGS")}
    return {**clean, "USER": "somebody", "STUB_LOG": str(tmp_path / "calls"), **more}


def make(tmp_path, stub, *variables):
    """Make's own recipe, with set-up and build taken away."""
    text = (SOURCE / "Makefile").read_text()
    recipe = text[text.index("\ngiven ="):]
    recipe = recipe[:recipe.index("\nquickstart: setup")]
    (tmp_path / "Makefile").write_text(
        f"SHELL := /bin/bash\n{recipe}\nquickstart:\n\t@{SOURCE}/scripts/quickstart {stub} $(LOG)\n")
    subprocess.run(["make", "-C", tmp_path, "quickstart", "LOG=a.csv", *variables], check=True,
                   env=environment(tmp_path), capture_output=True)
    return built(tmp_path)


def test_nothing_is_said_where_nothing_was_given(tmp_path, stub):
    assert make(tmp_path, stub) == ["--overwrite"]


@pytest.mark.parametrize("names", [("USER", "ITEM", "TIME"), VARIABLES[:3]])
def test_every_variable_reaches_data_build(names, tmp_path, stub):
    values = dict(zip(names, ("uid", "sku", "ts")), DELIMITER=";", TIME_UNIT="ms")
    given = make(tmp_path, stub, *[f"{name}={value}" for name, value in values.items()])
    assert given == ["--user", "uid", "--item", "sku", "--time", "ts", "--delimiter", ";",
                     "--time-unit", "ms", "--overwrite"]


def test_make_help_lists_every_target():
    text = (SOURCE / "Makefile").read_text()
    targets = text[text.index("\n.PHONY:"):].split("\n")[1].split()[1:]
    said = subprocess.run(["make", "-C", SOURCE, "--no-print-directory", "help"], check=True, text=True,
                          capture_output=True).stdout
    assert sorted(line.split()[1] for line in said.splitlines()) == sorted(targets)
    assert all(len(line.split()) > 2 and len(line) < 100 for line in said.splitlines()), said
