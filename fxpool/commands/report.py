"""The command ``fxpool bug-report``: one text file about this installation, without secrets.

    `fxpool doctor`, `config`, `stats`, `status`, `cache quarantine`, and the ends of logs ──▶ `_scrubbed` ──▶ FILE

Each section is the output of a command. The file has the values of a few environment variables (`_SHOWN`) and of
settings. The value of any other variable is replaced by its name wherever it occurs, in logs and paths, too.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from fxpool import config, quantities, remote_stores
from fxpool.commands import cache, doctor, server
from fxpool.commands.settings import settings
from fxpool.setting_values import without_secrets
from fxpool.version import __version__

__all__ = ["bug_report"]

_DISTRIBUTIONS = ("fxpool", "torch", "triton", "sympy", "numpy", "click", "filelock", "msgspec", "psutil", "rich",
                  "tblib", "zstandard", "transformers", "lightning",
                  *(store.package for store in remote_stores.STORES))  # fmt: skip
#: Variables whose values are shown. Addresses are not among them.
_SHOWN = ("CC", "CI", "COLUMNS", "CUDA_VISIBLE_DEVICES", "CXX", "LANG", "LC_ALL", "NO_COLOR", "OMP_NUM_THREADS", "TERM",
          "TORCH_COMPILE_DEBUG", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TORCH_LOGS", "TORCHINDUCTOR_CACHE_DIR",
          "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_FX_COMPILE_MODE",
          "TORCHINDUCTOR_FX_GRAPH_CACHE", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME",
          "XDG_RUNTIME_DIR")  # fmt: skip
# Directories that paths in the report begin with; replaced, they would be hard to read.
_PATHS = ("CONDA_PREFIX", "OLDPWD", "PWD", "VIRTUAL_ENV", "_")
# A setting that may have a password.
_ADDRESS = "FXPOOL_REMOTE_CACHE"
_NAMED = re.compile(r"(FXPOOL|TORCH|TRITON|PYTORCH|CUDA|NCCL|HIP|ROCM|OMP|MKL|PYTHON)")
# Shorter values, such as 1 or auto, occur everywhere.
_SHORTEST = 5
_LOG_LINES = 40


@click.command("bug-report")
@click.argument("file", required=False, type=click.Path(dir_okay=False, allow_dash=True))
def bug_report(file: str | None) -> None:
    """Write a text file for a bug report, without secrets.

    It has the findings of `fxpool doctor`, versions, settings, counters, the pool's status, and the ends of logs. FILE
    is fxpool-bug-report-DATE.txt by default; - is standard output. Values of environment variables are left out, but
    for settings and a few others, and so are passwords in URLs. Takes some ten seconds.
    """
    file = file or time.strftime("fxpool-bug-report-%Y%m%d-%H%M%S.txt")
    click.echo("running the checks of `fxpool doctor`, some ten seconds", err=True)
    sections: dict[str, Callable[[], None]] = {
        "versions": _versions,
        "doctor": lambda: _output_of(doctor.doctor),
        "settings": lambda: _output_of(settings),
        "environment": _environment,
        "cache": lambda: _output_of(cache.stats),
        "quarantine": lambda: _output_of(cache.cache_quarantine),
        "pool": lambda: _output_of(server.status),
        "logs": _logs,
    }
    text = _scrubbed("\n".join(_section(name, write) for name, write in sections.items()), os.environ)
    if file == "-":
        click.echo(text)
        return
    # Private: it names files and functions of the program.
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
        stream.write(text)
    click.echo(f"wrote {file} ({quantities.size(len(text.encode()))}): read it before you send it")


def _section(name: str, write: Callable[[], None]) -> str:
    """Return a section; an error of any kind becomes part of it, as the report is for machines with problems."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            write()
        except SystemExit as ended:  # `doctor` found a problem
            click.echo(f"(exit status {ended.code})" if ended.code else "")
        except Exception as error:
            click.echo(f"{type(error).__name__}: {error}")
    return f"## {name}\n\n{output.getvalue().rstrip()}\n"


def _output_of(command: click.Command) -> None:
    command.main([], standalone_mode=False)


def _versions() -> None:
    click.echo(f"fxpool {__version__}, Python {platform.python_version()} ({sys.executable})")
    click.echo(f"{platform.platform()}, {quantities.counted(os.cpu_count() or 0, 'CPU')}")
    click.echo(quantities.moment(time.time()))
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            click.echo(f"{name} {importlib.metadata.version(name)}")


def _environment() -> None:
    for name in sorted(os.environ):
        if _is_shown(name):
            click.echo(f"{name}={os.environ[name]}")
        elif _NAMED.match(name):
            click.echo(f"{name} is set")


def _is_shown(name: str) -> bool:
    settings = {config.variable(setting) for setting in config.Settings.__dataclass_fields__}
    return name != _ADDRESS and (name in _SHOWN or name in settings or name == "FXPOOL_CONFIG")


def _logs() -> None:
    """Print the ends of the logs of servers, and of the output of workers that died."""
    for path in _log_files():
        click.echo(f"### {path}\n")
        with contextlib.suppress(OSError):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            click.echo("\n".join(lines[-_LOG_LINES:]) + "\n")


def _log_files() -> Iterator[Path]:
    root = server.runtime_root()
    for pattern in ("*/server.log", "*/logs/*"):
        yield from sorted(path for path in root.glob(pattern) if path.is_file())
    yield from sorted((config.current().cache_dir / "quarantine").glob("*.log"))


def _scrubbed(text: str, variables: Mapping[str, str]) -> str:
    """Return a text without values of variables that are not shown, and without users and queries of URLs."""
    hidden = {
        value: name
        for name, value in variables.items()
        if len(value) >= _SHORTEST and not _is_shown(name) and name not in _PATHS
    }
    # A value may be a part of another: the longest first. Lines may be broken at its spaces.
    for value in sorted(hidden, key=len, reverse=True):
        words = r"\s+".join(map(re.escape, value.split()))
        if words:
            text = re.sub(words, f"${hidden[value]}", text)
    return without_secrets(text)
