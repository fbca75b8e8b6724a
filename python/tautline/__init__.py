"""tautline's operators in Python, with autograd, meta kernels and torch.compile:

    import tautline
    y = tautline.ops.rms_norm(x, weight, 1e-6)

`tautline.ops` is torch.ops.tautline. The library is found beside this package or in the checkout's build
folders, when `ops` is first used; `tautline.load(path)` names another one. docs/operators.md lists the operators.
"""

from pathlib import Path

import torch

__all__ = ["load", "ops"]

_NAME = "libtautline_ops.so"
_loaded: Path | None = None


def _places() -> list[Path]:
    here = Path(__file__).resolve().parent
    checkout = here.parents[1]
    return [here / _NAME, checkout / "build" / _NAME, checkout / "build-cuda" / _NAME]


def _find() -> Path:
    places = _places()
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(str(place) for place in places)
    raise FileNotFoundError(f"{_NAME} is in none of {looked}; run `make build`, or name it: tautline.load(path)")


def load(library: str | Path | None = None) -> Path:
    """Loads the operators, once a process, and returns the library's path. `library`: the file or its folder."""
    global _loaded
    if library is None:
        if _loaded:
            return _loaded
        path = _find()
    else:
        path = Path(library).resolve()
        path = path / _NAME if path.is_dir() else path
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}; `make build` makes {_NAME} in the folder build")
    if _loaded and _loaded != path:
        raise RuntimeError(f"{_loaded} is loaded already, and a process holds one: {path} needs another process")
    if not _loaded:
        try:
            torch.ops.load_library(str(path))
        except OSError as error:
            raise ImportError(
                f"PyTorch {torch.__version__} cannot load {path} (it must be the PyTorch it was built with): {error}"
            ) from error
        _loaded = path
    return path


def __getattr__(name: str):
    if name == "ops":
        load()
        return torch.ops.tautline
    raise AttributeError(f"module 'tautline' has no attribute '{name}'; it has {', '.join(__all__)}")
