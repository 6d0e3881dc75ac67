"""`config`: each setting with its value, its source and its description."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fxpool import config
from fxpool.commands.main import main


def shown(*arguments: str) -> dict[str, list[str]]:
    """Return the words after each setting's name."""
    result = CliRunner(env={"COLUMNS": "300"}).invoke(main, ["config", *arguments])  # paths are not folded
    assert result.exit_code == 0, result.output
    return {words[0]: words[1:] for words in map(str.split, result.stdout.splitlines())}


def test_a_value_has_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('workers = 3\njob_timeout = "20m"\nstrict = true\n')
    monkeypatch.setenv("FXPOOL_CONFIG", str(file))
    monkeypatch.setenv("FXPOOL_JOB_TIMEOUT", "90s")
    monkeypatch.setenv("TORCHINDUCTOR_FX_COMPILE_MODE", "async+subprocess")
    config.configure(strict=False)
    rows = shown()
    assert list(rows) == list(config.Settings.__dataclass_fields__)
    assert rows["workers"] == ["3", str(file)]
    assert rows["job_timeout"] == ["90s", "FXPOOL_JOB_TIMEOUT"]
    assert rows["mode"] == ["async+subprocess", "TORCHINDUCTOR_FX_COMPILE_MODE"]
    assert rows["strict"] == ["false", "configure()"]
    assert rows["cache_max_bytes"] == ["10G", "default"] and rows["remote_cache"] == ["not", "set", "default"]


def test_the_pages_sample_is_right(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "settings.md").read_text()
    (sample,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    file = tmp_path / "config.toml"
    file.write_text("workers = 8\n")
    monkeypatch.setenv("FXPOOL_CONFIG", str(file))
    monkeypatch.setenv("FXPOOL_CACHE_DIR", "/data/fxpool")
    expected = {words[0]: words[1:] for words in map(str.split, sample.splitlines())}
    expected["workers"][1] = str(file)
    assert shown(*expected) == expected


def test_a_value_can_be_set_as_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    before = config.current()
    for name, words in shown().items():
        value = " ".join(words[:-1])
        if value != "not set":
            monkeypatch.setenv(config.variable(name), value)
    assert config.current() == before
    assert all(words[-1] == config.variable(name) for name, words in shown().items() if words[0] != "not")


def test_json_has_descriptions() -> None:
    result = CliRunner().invoke(main, ["config", "--json", "workers", "cache_dir"])
    rows = json.loads(result.stdout)
    assert list(rows) == ["cache_dir", "workers"]
    assert rows["cache_dir"]["value"] == str(config.current().cache_dir)
    assert rows["workers"]["value"] is None and "if not set: as many as" in rows["workers"]["description"]


def test_passwords_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_REMOTE_CACHE", "redis://bob:hunter2@cache.example:1/0")
    for arguments in ((), ("--json",)):
        output = CliRunner().invoke(main, ["config", *arguments]).stdout
        assert "hunter2" not in output and "redis://***@cache.example:1/0" in output


def test_an_unknown_setting_is_a_mistake() -> None:
    result = CliRunner().invoke(main, ["config", "cache_dri"])
    assert result.exit_code == 2 and "unknown setting 'cache_dri'" in result.stderr and "cache_dir" in result.stderr


def test_the_help_describes_every_setting() -> None:
    text = CliRunner().invoke(main, ["config", "--help"]).stdout
    for name in config.Settings.__dataclass_fields__:
        assert f"  {name} ({config.variable(name)})\n" in text
    assert "`progressive+subprocess`" in text and "WORKING_MODES" not in text
