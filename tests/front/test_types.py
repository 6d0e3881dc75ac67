"""The public API for a type checker, an editor and a reader: names, types, and a page with all of them."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sources import ROOT

import fxpool
from fxpool import config, setting_values

PAGE = (ROOT / "docs" / "api.md").read_text()


@pytest.mark.slow
def test_a_type_checker_accepts_right_uses_and_refuses_wrong_ones(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    uses = Path(__file__).with_name("typed_uses.py")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path), str(uses)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_editor_completes_public_names_settings_and_results() -> None:
    jedi = pytest.importorskip("jedi")

    def completed(text: str) -> set[str]:
        return {one.name for one in jedi.Interpreter(text, [{"fxpool": fxpool}]).complete()}

    assert completed("fxpool.") == set(fxpool.__all__)
    assert {"cache_dir=", "workers="} <= completed("fxpool.configure(")
    assert "median" in completed("fxpool.measure(len).")
    assert "'compiles'" in completed("fxpool.stats()['")


def test_the_module_lists_its_public_names_only() -> None:
    assert dir(fxpool) == sorted(fxpool.__all__)


def test_the_page_has_each_public_name_with_its_parameters_and_errors() -> None:
    targets = re.findall(r"^::: (\S+)", PAGE, re.MULTILINE)
    # Integrations import libraries that need not be installed.
    resolved = {target: pydoc.locate(target) for target in targets if not target.startswith("fxpool.integrations.")}
    assert [target for target, documented in resolved.items() if documented is None] == []
    for name in fxpool.__all__:
        public = getattr(fxpool, name)
        if not callable(public):
            assert f"`fxpool.{name}`" in PAGE
            continue
        assert any(public is documented for documented in resolved.values()), name
        text = inspect.getdoc(public) or ""
        assert re.search(r"\bRaises\b", text), f"{name} does not say which errors it raises"
        parameters = set(inspect.signature(public).parameters) if name != "configure" else set()
        assert not {one for one in parameters if not re.search(rf"[`*(]{one}\b", text)}, name


def test_the_page_s_settings_say_their_units() -> None:
    text = inspect.getsource(config.Settings)
    units: dict[str, list[object]] = {
        "econds": [setting_values.as_seconds],
        "ytes": [setting_values.as_limit, setting_values.as_job_memory],
        "umber": [setting_values.as_count],
    }
    for name, field in config.Settings.__annotations__.items():
        described = re.search(rf'^    {name}: [^\n]*\n    """(.*?)"""', text, re.MULTILINE | re.DOTALL)
        assert described, f"{name}: {field} has no docstring"
        assert all(unit in described[1] for unit, parsers in units.items() if config.parser(name) in parsers), name


def test_the_front_door_names_each_module_and_package() -> None:
    paths = (ROOT / "fxpool").iterdir()
    rooms = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()}
    text = fxpool.__doc__ or ""
    listed = set(re.findall(r"(?:^ {4}|  )(?:fxpool\.)?(\w+) {2,}\S", text, re.MULTILINE))
    listed |= set(re.findall(r"`fxpool\.(\w+)`", text))
    assert rooms - listed == {"__init__", "__main__"}
    assert {name for name in listed - rooms if name in ("demo", "measurement", "benchmarks")} == set()
