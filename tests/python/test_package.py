"""The package: it finds the library, says what is wrong where it cannot, and hands out torch.ops.tautline.

Each case is a process of its own, because a process loads the operators once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).resolve().parents[2] / "python"
LIBRARY = os.environ.get("TAUTLINE_OPS")
if LIBRARY is None:
    pytest.skip("TAUTLINE_OPS names no libtautline_ops.so", allow_module_level=True)


def python(code, folder=PYTHON, library=LIBRARY):
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-c", f"import tautline\nlibrary = {str(library)!r}\n{code}"],
        capture_output=True, text=True, env=environment,
    )


def last_line(done):
    assert done.returncode == 1, done.stdout
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def installed(tmp_path):
    """A copy of the package where there is no checkout."""
    package = tmp_path / "site" / "deep" / "tautline"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text((PYTHON / "tautline" / "__init__.py").read_text())
    return package


def test_a_named_library_gives_the_operators():
    done = python("""
import torch
assert str(tautline.load(library)) == library and tautline.load() == tautline.load(library)
x = torch.randn(5, 8)
y = tautline.ops.rms_norm(x, torch.ones(8), 1e-6)
assert torch.allclose(y, torch.nn.functional.rms_norm(x, (8,), torch.ones(8), 1e-6), rtol=0, atol=1e-5)
assert tautline.ops is torch.ops.tautline
import os
assert str(tautline.load(os.path.dirname(library))) == library  # its folder does too
""")
    assert done.returncode == 0, done.stderr


def test_it_is_found_beside_the_package_and_in_the_build_folder(installed):
    for place in (installed, installed.parents[1] / "build"):
        place.mkdir(exist_ok=True)
        (place / "libtautline_ops.so").symlink_to(LIBRARY)
        done = python("tautline.ops.gelu; print(tautline.load())", installed.parent)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(place / "libtautline_ops.so")
        (place / "libtautline_ops.so").unlink()


def test_what_is_wrong_is_said_in_one_line(installed, tmp_path):
    missing = last_line(python("tautline.ops", installed.parent))
    assert "libtautline_ops.so is in none of" in missing and "make build" in missing
    broken = tmp_path / "libtautline_ops.so"
    broken.write_text("not a library")
    done = python(f"""
for call in (
    lambda: tautline.load("{tmp_path}/other.so"),
    lambda: tautline.load("{tmp_path}"),
    lambda: tautline.load(library) and tautline.load("{tmp_path}"),
    lambda: tautline.op,
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])
""")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4, done.stdout + done.stderr
    assert lines[0].startswith(f"FileNotFoundError there is no {tmp_path}/other.so")
    assert lines[1].startswith("ImportError PyTorch") and f"cannot load {broken}" in lines[1]
    assert lines[2].startswith("RuntimeError") and "is loaded already" in lines[2]
    assert lines[3].endswith("no attribute 'op'; it has load, ops")
