"""Children of the test process that compile, on a host whose tool chain is known.

Finding out which vector instructions a host can use and precompiling one header takes 10 s and more
per cache directory; a session does it once, and every test's cache directory starts with a link to
the result. That is the state a second use of a host is in.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import HERE, run_python

import fxpool

# torch formats every graph for a trace as soon as anything could record it, pytest's capturing included.
logging.getLogger("torch.__trace").propagate = False
TRIVIAL = "import torch; torch.compile(lambda x: x.sin().sum(), backend=%r)(torch.randn(8))"


@pytest.fixture(scope="module", autouse=True)
def _pool_of_this_process() -> Iterator[None]:
    """What a module's tests compiled with in this process ends with it."""
    yield
    fxpool.close()


@pytest.fixture(scope="session")
def known_host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tool chain facts for fxpool (``c/toolchain``) and for stock Inductor (``i``)."""
    root = tmp_path_factory.mktemp("h")
    for name in "cirt":
        (root / name).mkdir(mode=0o700)
    environment = {
        "FXPOOL_CACHE_DIR": str(root / "c"),
        "FXPOOL_RUNTIME_DIR": str(root / "r"),
        "TORCHINDUCTOR_CACHE_DIR": str(root / "i"),
        "TMPDIR": str(root / "t"),
    }
    for backend in ("fxpool", "inductor"):
        run_python(["-c", TRIVIAL % backend], **environment)
    return root


@pytest.fixture
def cache(known_host: Path, tmp_path: Path) -> Path:
    """This test's cache directory: no entries, tool chain known."""
    directory = tmp_path / "c"
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "toolchain").symlink_to(known_host / "c" / "toolchain")
    return directory


@pytest.fixture
def child(cache: Path) -> Callable[..., dict[str, Any]]:
    """Run a model in a fresh process with this test's cache; gives the report of child.py."""

    def run(model: str, mode: str | None = "subprocess", **asked: Any) -> dict[str, Any]:
        asked = {"model": model, "backend": "fxpool", "mode": mode, "what": ["infer", "train"], **asked}
        return json.loads(run_python([str(HERE / "child.py"), json.dumps(asked)]).strip().splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def inductor(known_host: Path) -> Callable[..., dict[str, Any]]:
    """Stock Inductor's outputs for a model, computed once per session and set of arguments."""
    import torch

    kept: dict[str, dict[str, Any]] = {}

    def run(model: str, **asked: Any) -> dict[str, Any]:
        asked = {"model": model, "backend": "inductor", "what": ["infer", "train"], **asked}
        name = json.dumps(asked, sort_keys=True)
        if name not in kept:
            path = known_host / f"outputs-{len(kept)}.pt"
            asked["save"] = str(path)
            run_python([str(HERE / "child.py"), json.dumps(asked)], TORCHINDUCTOR_CACHE_DIR=str(known_host / "i"))
            kept[name] = torch.load(path)
        return kept[name]

    return run
