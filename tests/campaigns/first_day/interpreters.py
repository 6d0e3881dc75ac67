"""Rows about how Python is started, what its variables say, and what lies beside the program."""

from __future__ import annotations

from .environment import Site
from .needs import no_root, root
from .row import PLAIN, Row
from .verdict import Expected

__all__ = ["ROWS"]

_ZIPAPP = """
import sys, zipfile
with zipfile.ZipFile("app.pyz", "w") as archive:
    archive.write("main.py", "__main__.py")
"""


def _closed_directory(site: Site) -> None:
    site.work.chmod(0o700)


# Modules that fxpool or torch have under that name, and some of the standard library's that few programs import.
_OURS = ("pool", "lowering", "codecache", "config", "errors", "worker", "types_", "service", "statistics_")

ROWS = [
    # A program that torch can't find the source of: Dynamo does without.
    Row(name="python -c", arguments=("-c", "{text}")),
    Row(name="program on standard input", arguments=("-",), shell='exec "$@" < {program}'),
    Row(name="python -m", arguments=("-m", "main")),
    Row(
        name="python -m of a package",
        arguments=("-m", "package.tool"),
        files={"package/tool.py": PLAIN, "package/__init__.py": ""},
    ),
    Row(name="zipapp", arguments=("app.pyz",), files={"pack.py": _ZIPAPP}, shell='{python} pack.py && exec "$@"'),
    Row(name="PYTHONDONTWRITEBYTECODE=1", environment={"PYTHONDONTWRITEBYTECODE": "1"}),
    Row(name="PYTHONOPTIMIZE=1", environment={"PYTHONOPTIMIZE": "1"}),
    Row(name="PYTHONOPTIMIZE=2", environment={"PYTHONOPTIMIZE": "2"}),
    Row(name="PYTHONHASHSEED=0", environment={"PYTHONHASHSEED": "0"}),
    # torch.jit warns of itself while it is imported, as it does in this repository's tests.
    Row(name="-W error", arguments=("-W", "error", "-W", "ignore:`torch.jit:DeprecationWarning", "{program}")),
    Row(name="-X dev", arguments=("-X", "dev", "{program}")),
    Row(name="-I", arguments=("-I", "{program}")),
    Row(name="-s", arguments=("-s", "{program}")),
    Row(name="PYTHONSAFEPATH=1", environment={"PYTHONSAFEPATH": "1"}),
    Row(name="PYTHONMALLOC=debug", environment={"PYTHONMALLOC": "debug"}),
    Row(name="PYTHONPYCACHEPREFIX set", environment={"PYTHONPYCACHEPREFIX": "{tmp}/bytecode"}),
    Row(name="LD_PRELOAD empty", environment={"LD_PRELOAD": ""}),
    Row(name="OMP_NUM_THREADS=1", environment={"OMP_NUM_THREADS": "1"}),
    Row(name="CI=1", environment={"CI": "1"}),
    Row(name="LC_ALL=C", environment={"LC_ALL": "C", "LANG": None}),
    Row(name="no locale at all", environment={"LANG": None}),
    Row(name="LANG=xx_YY", environment={"LANG": "xx_YY.UTF-8"}),
    Row(name="PYTHONUTF8=0, LC_ALL=C", environment={"PYTHONUTF8": "0", "LC_ALL": "C"}),
    Row(name="PYTHONIOENCODING=ascii", environment={"PYTHONIOENCODING": "ascii"}),
    Row(
        name="non-ASCII names in the program, LC_ALL=C",
        program=PLAIN.replace("work", "möbel"),
        environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ),
    Row(name="TORCH_LOGS=+all", environment={"TORCH_LOGS": "+all"}),
    Row(
        name="TORCH_COMPILE_DEBUG=1", environment={"TORCH_COMPILE_DEBUG": "1"}, expected=Expected(pool=None, cache=None)
    ),
    Row(name="TORCHINDUCTOR_CACHE_DIR set", environment={"TORCHINDUCTOR_CACHE_DIR": "{tmp}/inductor"}),
    Row(
        name="TORCHINDUCTOR_FORCE_DISABLE_CACHES=1",
        environment={"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
        expected=Expected(cache=False),
    ),
    Row(
        name="FX_COMPILE_MODE=subprocess and install()",
        program=PLAIN.replace("import torch\n", "import fxpool, torch\nfxpool.install()\n", 1).replace(
            'backend="fxpool"', 'backend="inductor"'
        ),
        environment={"TORCHINDUCTOR_FX_COMPILE_MODE": "subprocess"},
        expected=Expected(cache=False),
    ),
    Row(
        name="FX_COMPILE_MODE=normal",
        environment={"TORCHINDUCTOR_FX_COMPILE_MODE": "normal"},
        expected=Expected(pool=False),
    ),
    *(
        Row(name=f"FXPOOL_POOL={pool}", environment={"FXPOOL_POOL": pool}, expected=Expected(pool=pool == "embedded"))
        for pool in ("embedded", "off")
    ),
    Row(name="modules named like ours beside the script", files={f"{name}.py": "NAME = 1\n" for name in _OURS}),
    Row(
        name="modules named like the library's beside it",
        files={f"{name}.py": "NAME = 1\n" for name in ("resource", "tomllib", "grp")},
    ),
    Row(name="directory closed to others", prepare=_closed_directory, needs=(root,)),
    Row(name="directory that can't be written", shell='chmod 0500 . && exec "$@"', needs=(no_root,)),
    Row(name="a symlink to the program", shell='ln -sf "$PWD/main.py" ../link.py && exec {python} ../link.py'),
    Row(
        name="in a directory with a space and an umlaut",
        files={"a näme/main.py": PLAIN},
        shell="cd 'a näme' && exec {python} main.py",
    ),
]
