"""The entry point that torch calls in every program: what is wrong with fxpool must not end `import torch`."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fxpool
from fxpool import torch_import
from fxpool.torch_compat.inductor import cache_artifacts

SEEN = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import torch
assert "fxpool.torch_import" in sys.modules, "torch has not called it"
print(torch.ones(2).sum().item())
"""
# Modules of fxpool that a program has which only imports torch.
IMPORTED = """
import os, sys, torch
print(sorted(name for name in sys.modules if name.partition(".")[0] == "fxpool"))
"""


def _imported(**variables: str) -> str:
    command = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.strip()


def test_it_imports_small_modules_only() -> None:
    assert _imported(TORCH_DEVICE_BACKEND_AUTOLOAD="1") == repr(
        [
            "fxpool",
            "fxpool.child_python",
            "fxpool.lowering",
            "fxpool.lowering.autoload",
            "fxpool.torch_compat",
            "fxpool.torch_compat.dynamo",
            "fxpool.torch_compat.dynamo.backend_table",
            "fxpool.torch_compat.inductor",
            "fxpool.torch_compat.inductor.cache_artifacts",
            "fxpool.torch_compat.patching",
            "fxpool.torch_import",
        ]
    )


def test_a_variable_of_torch_switches_it_off() -> None:
    assert _imported(TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "[]"


def test_torch_calls_it() -> None:
    (entry,) = importlib.metadata.entry_points(group="torch.backends", name="fxpool")
    assert entry.load() is torch_import.on_torch_import


LOOKED_UP = """
import sys, threading, torch, torch._dynamo
def modules():
    return [name for name in ("networkx", "torch._dynamo.backends.inductor") if name in sys.modules]
found, several = [], [threading.Thread(target=lambda: found.append(torch._dynamo.lookup_backend("fxpool")))
                      for _ in range(8)]
for thread in several: thread.start()
for thread in several: thread.join()
print(modules(), len(found), {function.__qualname__ for function in found})
try:
    torch._dynamo.lookup_backend("no_such_backend")
except torch._dynamo.exc.InvalidBackend as error:
    print(type(error).__name__)
print(torch._dynamo.list_backends(exclude_tags=()))
torch._dynamo.reset()
print(torch._dynamo.lookup_backend("fxpool") is found[0], torch._dynamo.lookup_backend("eager").__name__)
"""


def test_torch_finds_the_backend_without_importing_its_own() -> None:
    """All else is as without the early entry: other names, the list, `reset`, several threads."""
    (entry,) = importlib.metadata.entry_points(group="torch_dynamo_backends", name="fxpool")
    assert entry.value == torch_import.BACKEND
    early, late = (
        subprocess.run(
            [sys.executable, "-c", LOOKED_UP],
            env={**os.environ, "FXPOOL_POOL": "off", "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout.splitlines()
        for autoload in "10"
    )
    assert early[0] == "[] 8 {'fxpool_backend'}"
    assert late[0] == "['networkx', 'torch._dynamo.backends.inductor'] 8 {'fxpool_backend'}"
    assert early[1:] == late[1:] and early[1] == "InvalidBackend" and "'fxpool'" in early[2]
    assert early[3] == "True eager"


def test_a_package_that_is_there_in_part_only(tmp_path: Path) -> None:
    """As in a checkout that lost its links: on a file system without them, or by a copy that left them out."""
    links = shutil.ignore_patterns("pool", "lowering", "codecache", "bench", "__pycache__")
    shutil.copytree(Path(fxpool.__file__).parent, tmp_path / "fxpool", ignore=links)
    metadata = tmp_path / "fxpool.egg-info"
    metadata.mkdir()
    (metadata / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: fxpool\nVersion: 0.0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nfxpool = fxpool.torch_import:on_torch_import\n")
    # Without `site`: what makes an editable fxpool whole is done there.
    found = subprocess.run(
        [sys.executable, "-S", "-c", SEEN],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{Path(torch.__file__).parents[1]}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert "could not register fxpool's cache artifacts" in found.stdout and "2.0" in found.stdout
    assert "fxpool" not in found.stderr


def test_an_exception_is_logged_and_not_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def fail(*_: object) -> None:
        raise RuntimeError("a torch of the future")

    monkeypatch.setattr(cache_artifacts, "register", fail)
    torch_import.on_torch_import()
    assert "RuntimeError: a torch of the future" in caplog.text
