"""Where a row runs: its own directories, an ordinary user's environment, and a tool chain that is known.

<root>/<number>/home    HOME            <root>/<number>/work    the program, and where it is started
<root>/<number>/tmp     TMPDIR          <root>/<number>/seen    what the witness writes
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.children import ChildError, Children
from harness.places import learn_toolchain, link_toolchain

from fxpool.bench import witness

from .needs import PACKAGES
from .row import WITNESS, Row

__all__ = ["Site", "known_host"]

# Beside each program, by name: they are not on its path.
_WITNESSES = {"counter": Path(witness.__file__), "witness": Path(__file__).with_name("witness.py")}
# One second, so that what a row started ends with it.
_IDLE_TIMEOUT = "1"
_GRACE = 30.0
_PRELUDE = """import sys as _s, types as _t
if "first_day_witness" not in _s.modules:
    for _n in {files!r}:
        _w = _s.modules["first_day_" + _n] = _t.ModuleType("first_day_" + _n)
        _w.__file__ = {seen!r} + f"/{{_n}}.py"
        with open(_w.__file__, encoding="ascii") as _f:
            exec(compile(_f.read(), _w.__file__, "exec"), vars(_w))
    _w.RECORDS = {seen!r}
witness = _s.modules["first_day_witness"]
"""


class Site:
    """One row's directories. `names` are what its texts may name in braces; `prepare` may set more."""

    def __init__(self, root: Path, toolchain: Path | None = None, backend: str = "fxpool") -> None:
        self.root = root
        self.backend = backend
        self.home, self.tmp, self.work, self.seen = (root / name for name in ("home", "tmp", "work", "seen"))
        for directory in (root, self.home, self.tmp, self.work, self.seen):
            directory.mkdir(mode=0o755, exist_ok=True)
        self.seen.chmod(0o777)  # a program may become another user
        self.names = {
            "python": sys.executable,
            "program": str(self.work / "main.py"),
            "root": str(root),
            "home": str(self.home),
            "tmp": str(self.tmp),
            "directory": str(self.work),
            "packages": str(PACKAGES),
        }
        self._on_exit = contextlib.ExitStack()
        if toolchain is not None:
            link_toolchain(self.home / ".cache" / "fxpool", toolchain)
        self.toolchain = toolchain

    def on_exit(self, function: Callable[[], object]) -> None:
        """Have `function` called when the row's processes have ended."""
        self._on_exit.callback(function)

    def text(self, template: str) -> str:
        """`template` with this site's names in it."""
        for name, value in self.names.items():
            template = template.replace("{" + name + "}", value)
        return template

    def write(self, path: Path, content: str) -> None:
        """Write one of the row's files."""
        for name, file in _WITNESSES.items():
            copy = self.seen / f"{name}.py"
            if not copy.exists():
                shutil.copy(file, copy)
                copy.chmod(0o644)
        if self.backend != "fxpool":
            content = content.replace('backend="fxpool"', f'backend="{self.backend}"')
            content = content.replace("fxpool.install()", "None")
        prelude = _PRELUDE.format(files=list(_WITNESSES), seen=str(self.seen))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text(content.replace(WITNESS, prelude)), encoding="utf-8")

    def environment(self, row: Row, more: Mapping[str, str | None]) -> dict[str, str]:
        """An ordinary user's, with what the row changes."""
        found: dict[str, str | None] = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "TMPDIR": str(self.tmp),
            "LANG": "C.UTF-8",
            "FXPOOL_IDLE_TIMEOUT": _IDLE_TIMEOUT,
            # Two rows run at a time, and a row's models are tiny.
            "HF_HUB_OFFLINE": "1",
            **({"PYTHONPATH": str(PACKAGES)} if row.packages else {}),
            **row.environment,
            **more,
        }
        return {name: self.text(value) for name, value in found.items() if value is not None}

    # ------------------------------------------------------------------ leftovers

    def left(self) -> list[str]:
        """Processes and files of fxpool's that are still there; waits while there are any."""
        end = time.monotonic() + _GRACE
        while found := [*self._processes().values(), *self._files()]:
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        return found

    def _processes(self) -> dict[int, str]:
        """Processes that were started in this site: it is in their command line, environment or directory."""
        mark, found = os.fsencode(self.root) + b"/", {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if mark in line or mark in (entry / "environ").read_bytes():
                    shown = line.replace(b"\0", b" ").decode(errors="replace")[:150].strip()
                    if line:  # empty for a zombie
                        found[int(entry.name)] = f"process {entry.name}: {shown}"
        return found

    def _files(self) -> list[str]:
        """Sockets, servers' directories, and fxpool's temporary files."""
        found = []
        for parent, directories, files in os.walk(self.root):
            for name in [*directories, *files]:
                path = os.path.join(parent, name)
                with contextlib.suppress(OSError):
                    is_directory = stat.S_ISDIR(os.lstat(path).st_mode)
                    of_server = (name.startswith(("pool-", "host-")) and is_directory) or name.endswith(".socket")
                    temporary = parent == str(self.tmp) and name.startswith("fxpool") and not is_directory
                    if of_server or temporary:
                        found.append(f"file {os.path.relpath(path, self.root)}")
        return found

    def close(self, *, keep: bool) -> None:
        """End the remaining processes, undo `prepare`, and remove the directories."""
        for pid in self._processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._on_exit.close()
        if not keep:
            _remove(self.root)


def _remove(root: Path) -> None:
    def mend(function: Callable[..., object], path: str, _: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
            function(path)

    for _ in range(3):
        shutil.rmtree(root, onerror=mend)
        if not root.exists():
            return


def known_host(root: Path, children: Children) -> Path | None:
    """A directory of facts about the tool chain, made by one process; None where it comes to nothing."""
    site = Site(root)
    cache = {"FXPOOL_CACHE_DIR": str(site.home / ".cache" / "fxpool")}
    try:
        return learn_toolchain(children, site.environment(Row(name="first", environment=cache), {}))
    except (ChildError, RuntimeError):
        return None
    finally:
        site.left()
