"""Where a fresh interpreter finds what this one found: the same modules, in the same order, and nothing else."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import types
from pathlib import Path

import pytest

from fxpool.lowering.core import pool_environment


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter's own directory, `site`, whose ``.pth`` file names `named`; torch is imported from `found`."""
    for name in ("site", "named", "first", "second", "found"):
        (tmp_path / name).mkdir()
    (tmp_path / "site/some.pth").write_text(f"# a comment\nimport sys\n{tmp_path / 'named'}\n")
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "site")])
    monkeypatch.setattr(site, "getusersitepackages", lambda: str(tmp_path / "user"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), str(tmp_path / "named")])
    return tmp_path


def found_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = types.SimpleNamespace(origin=str(place / "torch" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "torch" else None)


@pytest.mark.parametrize("where", ["site", "named"])
def test_what_every_interpreter_finds_is_not_named(place: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """In front of its own directories it would bring other modules of theirs along."""
    found_in(place / where, monkeypatch)
    assert pool_environment._import_path_of_libraries() == []


def test_an_overlay_of_links_is_named_and_not_what_they_lead_to(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "site/torch").mkdir()
    (place / "site/torch/__init__.py").touch()
    (place / "first/torch").mkdir()
    (place / "first/torch/__init__.py").symlink_to(place / "site/torch/__init__.py")
    sys.path.insert(0, str(place / "first"))
    found_in(place / "first", monkeypatch)
    assert pool_environment._import_path_of_libraries() == [str(place / "first")]


def test_the_order_is_this_processs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program put its torch in front of what PYTHONPATH names."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place / "second"), str(place / "elsewhere")]))
    sys.path[:0] = [str(place / "first"), str(place / "second")]
    found_in(place / "first", monkeypatch)
    expected = [str(place / name) for name in ("first", "second", "elsewhere")]
    assert pool_environment._import_path_of_libraries() == expected


def test_workers_trust_whom_the_program_trusts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also if a settings file that they do not read says so."""

    def owners() -> set[str | None]:
        job, server = pool_environment.job_environment({}), pool_environment.zygote_environment()
        return {job["FXPOOL_TRUSTED_OWNERS"], server["FXPOOL_TRUSTED_OWNERS"]}

    own = {0, os.geteuid()}
    assert owners() == {",".join(map(str, sorted(own)))}
    monkeypatch.setenv("FXPOOL_CONFIG", str(tmp_path / "settings.toml"))
    (tmp_path / "settings.toml").write_text("trusted_owners = [12345]")
    assert owners() == {",".join(map(str, sorted({*own, 12345})))}
    monkeypatch.setenv("FXPOOL_TRUSTED_OWNERS", "4321")
    assert owners() == {",".join(map(str, sorted({*own, 4321})))}


def test_secrets_of_the_environment_do_not_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("API_TOKEN", "AWS_SECRET_ACCESS_KEY", "FXPOOL_REMOTE_CACHE"):
        monkeypatch.setenv(name, "planted")
    assert "planted" not in pool_environment.zygote_environment().values()
