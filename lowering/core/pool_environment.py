"""The environment of the pool's processes: variables and import path of server, zygote and jobs.

A server and its zygote get only the variables that they need to find their interpreter, libraries and temporary files.
The rest of this program's environment is sent with each of its jobs.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import site
import sys
from collections.abc import Mapping

__all__ = ["DEVICES", "import_path", "is_text", "job_environment", "working_directory", "zygote_environment"]

_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH",
                "PYTHONHOME", "VIRTUAL_ENV", "SSL_CERT_FILE", "LD_PRELOAD", "PYTHONDONTWRITEBYTECODE",
                "PYTHONPYCACHEPREFIX")  # fmt: skip

#: Variables that name devices. They are hidden while the zygote imports, and from jobs that can do without.
DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
# What a server has of the process that started it, and another program may not have set: compilers are found by it.
_OF_THE_STARTER = ("PATH", "HOME")


def zygote_environment() -> dict[str, str]:
    """The variables that a server and its zygote are started with."""
    variables = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # One thread while it is only importing: forking needs that.
    variables.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    # A GPU that is looked for is found through NVML (a CUDA call would mark the process as one that
    # can't be forked), and is not seen while the zygote imports: NVML's first call starts a thread.
    variables["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    variables.update(dict.fromkeys(DEVICES, ""))
    # Where Triton is installed, importing Inductor starts a compile pool of its own, and threads with it.
    variables.update(TORCH_WARM_POOL="0", TORCHINDUCTOR_COMPILE_THREADS="1")
    path = _import_path_of_libraries()
    if path:
        variables["PYTHONPATH"] = os.pathsep.join(path)
    return variables


def _import_path_of_libraries() -> list[str]:
    """Directories a fresh interpreter must be told of to find what this one found, in this one's order.

    PYTHONPATH's, and those that fxpool, its dependencies and what compiles were imported from, unless they are the
    interpreter's own. Not the program's directory: a file there could shadow a module of Python's.
    """
    sites = [*site.getsitepackages(), site.getusersitepackages()]
    own = {os.path.realpath(p) for p in (*sites, *_named_by(sites), os.path.dirname(os.__file__))}
    here = working_directory()

    def known(paths: list[str]) -> list[str]:  # relative ones are of the working directory, which may be gone
        return [p for p in paths if os.path.isabs(p) or (p and here is not None)]

    order = list(map(os.path.realpath, known(sys.path)))
    wanted = known(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for module in ("fxpool", "torch", "triton", "sympy", "msgspec", "psutil", "tblib", "zstandard"):
        try:
            spec = importlib.util.find_spec(module)
        except ValueError:  # imported, by something that makes modules
            continue
        if spec is not None and spec.origin is not None:
            # Where it was found, not where it lies: an overlay may be made of links.
            place = os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
            if os.path.realpath(place) in order:
                wanted.append(place)

    def rank(place: str) -> int:
        real = os.path.realpath(place)
        return order.index(real) if real in order else len(order)

    directories = [p for p in dict.fromkeys(map(os.path.abspath, wanted)) if os.path.realpath(p) not in own]
    return sorted(directories, key=rank)


# As `site` reads these files: comments, and lines that are executed.
_NO_PATH = ("#", "import ", "import\t")


def _named_by(sites: list[str]) -> list[str]:
    """Directories that every interpreter puts behind its own, because a ``.pth`` file there says so.

    In front of its own they would change which of two modules of one name is found.
    """
    places = []
    for place in sites:
        for path in sorted(glob.glob(os.path.join(glob.escape(place), "*.pth"))):
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as file:
                lines = [line.strip() for line in file]
                places += [os.path.join(place, line) for line in lines if line and not line.startswith(_NO_PATH)]
    return places


def job_environment(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Variables a job's worker gets besides its zygote's; None takes one away.

    One whose value is no UTF-8 can't be sent: the worker has its server's, which the host's first process started.
    """
    sent = {name: value for name, value in variables.items() if is_text(value)}
    return {**dict.fromkeys((*DEVICES, *_OF_THE_STARTER)), **sent}


def import_path() -> tuple[str, ...]:
    """The program's import path for its jobs; an empty entry becomes the working directory."""
    here = working_directory()
    paths = (path or here for path in sys.path)
    return tuple(path for path in paths if path and is_text(path))


def working_directory() -> str | None:
    """None for one that a worker can't be told of, or that was removed under us."""
    try:
        path = os.getcwd()
    except OSError:
        return None
    return path if is_text(path) else None


def is_text(path: str) -> bool:
    """Return whether a path or a variable's value can be sent to a worker: not every one is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
