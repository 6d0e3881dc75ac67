"""The environment of the pool's processes: variables and import path of server, zygote and jobs, limits of jobs.

A server and its zygote get only the variables that they need to find their interpreter, libraries and temporary files.
The rest of this program's environment is sent with each of its jobs. All of them trust the owners of directories that
this program trusts, wherever its settings come from.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import site
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from fxpool import config
from fxpool.child_python import PROGRAM_RUN

if TYPE_CHECKING:
    from fxpool.pool import JobSpec

__all__ = [
    "DEVICES", "import_path", "is_text", "job_environment", "job_spec", "working_directory", "zygote_environment",
]  # fmt: skip

_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "LD_LIBRARY_PATH",
                "PYTHONHOME", "VIRTUAL_ENV", "SSL_CERT_FILE", "LD_PRELOAD", "PYTHONDONTWRITEBYTECODE",
                "PYTHONPYCACHEPREFIX")  # fmt: skip

# The job that imports modules and loads libraries of a program, by the pool's naming.
_IMPORT_CODE = "fxpool.lowering.worker.compiler:import_code"

# Packages of a farm's engines, and prefixes of their settings, for the server's bridge.
_ENGINES = ("distributed", "ray")
_OF_ENGINES = ("DASK_", "RAY_")

#: Variables that list visible devices. They are emptied while the zygote imports, and for jobs that need no device.
DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
# Variables that a server inherits from the process that started it, although another program may lack them. Compilers
# are found by them.
_OF_THE_STARTER = ("PATH", "HOME")


def zygote_environment() -> dict[str, str]:
    """Return the variables that a server and its zygote are started with."""
    variables = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    variables |= {name: value for name, value in os.environ.items() if name.startswith(_OF_ENGINES)}
    # A single thread while the zygote imports: forking needs that.
    variables.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    # Checks for a GPU go through NVML (a CUDA call would mark the process as unsafe to fork), and no GPU is visible
    # while the zygote imports: NVML's first call starts a thread.
    variables["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    variables.update(dict.fromkeys(DEVICES, ""))
    # If Triton is installed, importing Inductor starts its compile pool, with threads.
    variables.update(TORCH_WARM_POOL="0", TORCHINDUCTOR_COMPILE_THREADS="1")
    variables.update(_trusted())
    path = _import_path_of_libraries()
    if path:
        variables["PYTHONPATH"] = os.pathsep.join(path)
    return variables


def _import_path_of_libraries() -> list[str]:
    """Return the directories that a fresh interpreter needs to find the modules of this one, in the same order.

    These are PYTHONPATH's, and those that fxpool, its dependencies and the compilers' modules were imported from,
    unless the interpreter has them by default. The program's directory is left out: a file there could shadow a
    module of Python's.
    """
    sites = [*site.getsitepackages(), site.getusersitepackages()]
    own = {os.path.realpath(p) for p in (*sites, *_named_by(sites), os.path.dirname(os.__file__))}
    here = working_directory()

    def usable(paths: list[str]) -> list[str]:  # relative paths depend on the working directory, which may be gone
        return [p for p in paths if os.path.isabs(p) or (p and here is not None)]

    order = list(map(os.path.realpath, usable(sys.path)))
    wanted = usable(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for module in ("fxpool", "torch", "triton", "sympy", "msgspec", "psutil", "tblib", "zstandard", *_ENGINES):
        try:
            spec = importlib.util.find_spec(module)
        except ValueError:  # a module without a spec, made by the program
            continue
        if spec is not None and spec.origin is not None:
            # The path on which it was found, without resolving links: an overlay may consist of links.
            place = os.path.dirname(os.path.dirname(os.path.abspath(spec.origin)))
            if os.path.realpath(place) in order:
                wanted.append(place)

    def rank(directory: str) -> int:
        real = os.path.realpath(directory)
        return order.index(real) if real in order else len(order)

    directories = [p for p in dict.fromkeys(map(os.path.abspath, wanted)) if os.path.realpath(p) not in own]
    return sorted(directories, key=rank)


# Prefixes of lines that are not paths to `site`: comments, and lines that are executed.
_NO_PATH = ("#", "import ", "import\t")


def _named_by(sites: list[str]) -> list[str]:
    """Return the directories that every interpreter appends to its own path because of ``.pth`` files in `sites`.

    In front of its path they would change which of two modules of the same name is found.
    """
    places = []
    for place in sites:
        for path in sorted(glob.glob(os.path.join(glob.escape(place), "*.pth"))):
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="surrogateescape") as file:
                lines = [line.strip() for line in file]
                places += [os.path.join(place, line) for line in lines if line and not line.startswith(_NO_PATH)]
    return places


def job_environment(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables of a job's worker in addition to its zygote's; None removes a variable.

    A value that is not UTF-8 cannot be sent. The worker then has the server's value, from the process that started it.
    """
    sent = {name: value for name, value in variables.items() if is_text(value) and name != PROGRAM_RUN}
    return {**dict.fromkeys((*DEVICES, *_OF_THE_STARTER)), **sent, **_trusted()}


def job_spec(
    label: str,
    environment: Mapping[str, str],
    modules: Sequence[str] = (),
    libraries: Sequence[str] = (),
    *,
    settings: config.Settings | None = None,
) -> JobSpec:
    """Return a job specification under these or the current settings.

    It has this program's import path and working directory. `environment` are the job's variables in addition to its
    zygote's. Limits are in seconds and bytes. Workers import `modules` of the program and load `libraries` before the
    job.
    """
    from fxpool.pool import JobSpec, Preparation  # 0.05 s, which a hit saves

    settings = settings or config.current()
    argument = msgspec.msgpack.encode((modules, libraries))
    return JobSpec(
        label=label,
        environment=job_environment(environment),
        sys_path=import_path(),
        cwd=working_directory(),
        preparation=Preparation(_IMPORT_CODE, argument) if modules or libraries else None,
        **settings.job_limits,
    )


def _trusted() -> dict[str, str]:
    """Return the variable with the owners that this program trusts."""
    return {config.variable("trusted_owners"): ",".join(map(str, sorted(config.trusted_owners())))}


def import_path() -> tuple[str, ...]:
    """Return the program's import path for its jobs; an empty entry becomes the working directory."""
    here = working_directory()
    paths = (path or here for path in sys.path)
    return tuple(path for path in paths if path and is_text(path))


def working_directory() -> str | None:
    """Return the working directory; None if it cannot be sent to a worker, or was removed."""
    try:
        path = os.getcwd()
    except OSError:
        return None
    return path if is_text(path) else None


def is_text(path: str) -> bool:
    """Return whether a path or a variable's value can be sent to a worker, which requires UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
