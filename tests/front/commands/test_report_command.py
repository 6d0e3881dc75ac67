"""`bug-report`: everything that a maintainer asks for in one file, and no secret."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fxpool.commands import report
from fxpool.commands.main import main
from fxpool.doctor import compile_trial
from fxpool.setting_values import without_secrets

SECRETS = {
    "API_TOKEN": "hunter2-token",
    "PASS_PHRASE": "correct horse battery staple",
    "HTTPS_PROXY": "http://bob:proxy-word@proxy.example:3128",
    "FXPOOL_REMOTE_CACHE": "redis://alice:cache-word@cache.example:6379/0?password=query-word",
    "TORCHINDUCTOR_REDIS_URL": "redis://:redis-word@cache.example:6379",
    "AWS_SECRET_ACCESS_KEY": "aws/secret+key",
}
WORDS = (
    "hunter2-token",
    "battery",
    "proxy-word",
    "cache-word",
    "query-word",
    "redis-word",
    "secret+key",
    "bob",
    "alice",
)


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def without_a_compile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave out doctor's compile, which takes ten seconds."""
    monkeypatch.setattr(compile_trial.Trial, "checks", lambda self: [])
    monkeypatch.setattr(compile_trial.Trial, "__enter__", lambda self: self)
    monkeypatch.setattr(compile_trial.Trial, "__exit__", lambda self, *_: None)
    yield


def planted_logs(tmp_path: Path) -> None:
    """Logs in which a program has printed its secrets, whole and in lines of a few words."""
    text = "\n".join(SECRETS.values()) + "\ncorrect horse\n   battery staple\nGET s3://b/k?X-Amz-Signature=query-word\n"
    for directory, name in (("r/pool-1", "server.log"), ("r/pool-1/logs", "1.log"), ("c/quarantine", "ab.log")):
        (tmp_path / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        (tmp_path / directory / name).write_text(f"worker died\n{text}")


@pytest.mark.usefixtures("secrets", "without_a_compile")
@pytest.mark.parametrize("columns", ["", "40"])
def test_a_report_has_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    planted_logs(tmp_path)
    file = tmp_path / "report.txt"
    result = CliRunner().invoke(main, ["bug-report", str(file)])
    assert result.exit_code == 0, result.output
    assert f"wrote {file}" in result.stdout and stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert [word for word in WORDS if word in " ".join(text.split())] == []
    for section in ("versions", "doctor", "settings", "environment", "cache", "quarantine", "pool", "logs"):
        assert f"## {section}\n" in text
    assert text.count("worker died") == 3, "the ends of the logs are in it"
    assert "TORCHINDUCTOR_REDIS_URL is set" in text and "API_TOKEN is set" not in text
    assert "redis://***@cache.example:6379/0?***" in " ".join(text.split()), "the address is, without its password"
    shutil.rmtree(tmp_path / "r/pool-1")


@pytest.mark.usefixtures("without_a_compile")
def test_a_report_of_a_broken_installation_says_what_is_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FXPOOL_STRICT", "maybe")
    result = CliRunner().invoke(main, ["bug-report", "-"])
    assert result.exit_code == 0 and "ConfigurationError: FXPOOL_STRICT: 'maybe' is not" in result.stdout
    assert "torch 2." in result.stdout


def test_a_shown_variable_is_not_replaced() -> None:
    variables = {"TORCH_LOGS": "+inductor", "SECRET": "+inductor-x", "LEVEL": "1", "PWD": "/home"}
    assert report._scrubbed("+inductor +inductor-x 1 /home", variables) == "+inductor $SECRET 1 /home"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://u:p@h:1/0", "redis://***@h:1/0"),
        ("redis://:p@h:1", "redis://***@h:1"),
        ("at rediss://u@h/0?a=b&c=d, then", "at rediss://***@h/0?*** then"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("mail a@b.c about https://h/p", "mail a@b.c about https://h/p"),
        ("redis://u:p@ss@h:1", "redis://***@h:1"),
        ("redis://u:p/q@h:1", "redis://***@h:1"),
    ],
)
def test_urls_lose_users_and_queries(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
