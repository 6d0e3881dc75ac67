"""Other platforms are refused before any import that fails there, and the message names what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Modules, and names of `os`, that a platform lacks.
WINDOWS = (
    ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog", "readline"),
    ("fork", "getuid", "geteuid", "register_at_fork", "sched_getaffinity", "uname", "getxattr", "O_NOFOLLOW",
     "O_CLOEXEC", "O_DIRECTORY", "O_PATH", "memfd_create", "killpg", "setsid", "mkfifo", "statvfs", "ST_RDONLY"),
)  # fmt: skip
MACOS = ((), ("sched_getaffinity", "getxattr", "O_PATH", "memfd_create", "pidfd_open", "copy_file_range"))

PRETEND = """
import importlib.abc, os, sys, subprocess, tempfile, shutil, pathlib, asyncio, inspect
AHEAD
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
for name in MODULES:
    sys.modules.pop(name, None)
for name in NAMES:
    if hasattr(os, name):
        delattr(os, name)
sys.meta_path.insert(0, Missing())
sys.platform = "PLATFORM"
"""


def child(platform: str, program: str, ahead: str = "") -> subprocess.CompletedProcess[str]:
    modules, names = WINDOWS if platform == "win32" else MACOS
    head = PRETEND.replace("PLATFORM", platform).replace("AHEAD", ahead)
    head = head.replace("MODULES", repr(modules)).replace("NAMES", repr(names))
    return subprocess.run([sys.executable, "-c", head + program], capture_output=True, text=True, timeout=300)


PUBLIC = """
import fxpool, fxpool.torch_import
fxpool.torch_import.on_torch_import()
arguments = {"aot_compile": (None, "x.pt2"), "standalone_compile": (None, []), "once": ("key", bytes)}
for name in sorted({*fxpool.__all__} - {"__version__", "errors", "close", "uninstall", "wait"}):
    try:
        getattr(fxpool, name)(*arguments.get(name, ()))
    except fxpool.errors.UnsupportedTorchError as refused:
        print(name, refused.message, "|", refused.remedy)
    else:
        print(name, "was not refused")
fxpool.close(), fxpool.wait(0), fxpool.uninstall()
"""


@pytest.mark.parametrize(
    ("platform", "name", "way"), [("win32", "Windows", "WSL2"), ("darwin", "macOS", "a Linux container")]
)
def test_every_call_is_refused(platform: str, name: str, way: str) -> None:
    done = child(platform, PUBLIC)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) > 10 and all(f"fxpool works on Linux only, and this is {name} |" in line for line in lines)
    assert all(way in line and "inductor" in line and "torch 2" not in line for line in lines)


@pytest.mark.parametrize("module", ["fxpool.commands.main", "fxpool"])
def test_so_is_the_command(module: str) -> None:
    start = f"import runpy; sys.argv = ['fxpool', 'doctor']; runpy.run_module({module!r}, run_name='__main__')"
    done = child("win32", start)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("fxpool: fxpool works on Linux only, and this is Windows\n  run the program in WSL2")
    assert "Traceback" not in done.stderr


def test_pytest_starts_with_the_plugin() -> None:
    done = child("win32", "import fxpool.bench.pytest_plugin; print('loaded')", "import pytest")
    assert (done.returncode, done.stdout) == (0, "loaded\n"), done.stderr


COMPILE = """
try:
    torch.compile(lambda x: x + 1, backend="fxpool")(torch.ones(2))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "way"), [("win32", "WSL2"), ("darwin", "a Linux container")])
def test_so_is_the_backend(platform: str, way: str) -> None:
    ahead = "os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import torch, torch._dynamo.backends.registry"
    ahead += ", filelock, psutil"
    done = child(platform, COMPILE, ahead)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UnsupportedTorchError fxpool works on Linux only") and way in done.stdout
