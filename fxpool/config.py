"""Settings: their names, sources, precedence and values.

    fxpool.configure(cache_dir=...)     a call
      > FXPOOL_CACHE_DIR=...            the environment
      > cache_dir = "..."               a TOML file: $FXPOOL_CONFIG, $XDG_CONFIG_HOME/fxpool/config.toml
                                        or ~/.config/fxpool/config.toml
      > the default

A new setting is one field of `Settings` and one parameter of `configure`. An unknown name raises `UnknownNameError`; a
value that does not parse raises `ConfigurationError`, which names its source. A typing error in a setting must not look
like a setting without effect.

The TOML parser is imported inside functions: most processes have no settings file.
"""

# ruff: noqa: RUF009  (`_setting` returns the field of a dataclass)

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from fxpool import directories, forks, setting_values
from fxpool.errors import ConfigurationError, FxpoolError, UnknownNameError
from fxpool.setting_values import WORKING_MODES, WORKING_POOLS

__all__ = [
    "WORKING_MODES", "WORKING_POOLS", "Settings", "configure", "current", "descriptions", "override", "parser",
    "reset", "sources", "trusted_owners", "variable", "why_temporary",
]  # fmt: skip

_PREFIX = "FXPOOL_"
_MODE_VARIABLE = "TORCHINDUCTOR_FX_COMPILE_MODE"
_CONFIG_VARIABLE = "FXPOOL_CONFIG"
# Variables besides settings. The second is read by the plugin for inference engines (`inductor.engine_plugin`).
_OTHER_VARIABLES = (_CONFIG_VARIABLE, "FXPOOL_INSTALL")
# Kubernetes gives every container FXPOOL_SERVICE_HOST, FXPOOL_PORT_80_TCP, ... once a service is named fxpool, and
# FXPOOL_X_SERVICE_HOST, ... for fxpool-x.
_KUBERNETES_LINK = re.compile(r"FXPOOL_(\w+_)?(SERVICE_HOST|SERVICE_PORT\w*|PORT|PORT_\d\w*)")


def _in_home(variable: str, name: str, file: str) -> Path | None:
    """Return a path in the directory that `variable` or else `name` in the home stands for; None without a home."""
    base = os.environ.get(variable, "")
    # The XDG specification says that a relative value is to be ignored.
    if os.path.isabs(base):
        return Path(base, file)
    home = directories.home()
    return Path(home, name, file) if home is not None else None


@dataclass(frozen=True)
class _Row:
    """The parser of a setting, its default or a function that returns it, and its variable if that is not the usual."""

    parse: Callable[[object], Any]
    initial: Any
    variable: str

    def default(self) -> Any:
        return self.initial() if callable(self.initial) else self.initial


def _setting(parse: Callable[[object], Any], default: Any, *, variable: str = "") -> Any:
    """Return the field of a setting."""
    return dataclasses.field(metadata={"row": _Row(parse, default, variable)})


@dataclass(frozen=True)
class Settings:
    """A consistent snapshot of every setting. Paths are absolute, sizes are bytes, times are seconds (`2m` is 120)."""

    # Not /tmp, if possible: files that a reboot or a cleaner removes would have to be compiled again.
    cache_dir: Path = _setting(setting_values.as_path, lambda: _in_home("XDG_CACHE_HOME", ".cache", "fxpool"))
    """Directory of entries, blobs and toolchain facts. If none can be used in the home, the default is a private
    directory under the temporary directory, with one warning."""
    cache_base: Path | None = _setting(setting_values.as_path, None)
    """Read-only cache that this user or root has filled, for example in an image. Lookups try it first."""
    trusted_owners: tuple[int, ...] = _setting(setting_values.as_users, ())
    """Users, by name or number, with commas between them, who may own the cache base and directories above others, as
    root and this user may. Set it in the environment or the file, because workers check directories as well."""
    cache_max_bytes: int | None = _setting(setting_values.as_limit, 10 << 30)
    """Bytes that the cache directory may take on disk. The least recently used entries are evicted first. `none`: no
    limit."""
    cache_max_files: int | None = _setting(setting_values.as_count, 100_000)
    """Number of files that the cache directory may hold; `none`: no limit."""
    cache_min_seconds: float = _setting(setting_values.as_seconds_or_none, 0.0)
    """Graphs compiled in less time are not stored. 0: all graphs are stored."""
    keep_requests: bool = _setting(setting_values.as_bool, False)
    """Store with each entry the request it was compiled from, for ``fxpool cache verify --recompute``: the graph, its
    constants, and names of the program's code."""
    remote_cache: str | None = _setting(setting_values.as_address, None)
    """Address of a cache that machines share, behind the directory, such as ``redis://host:6379/0`` or
    ``s3://bucket/prefix``."""
    remote_key_file: Path | None = _setting(setting_values.as_path, None)
    """File with the keys that authenticate remote values and bundles (mode 0600, a key per line)."""
    remote_use: str = _setting(setting_values.as_remote_use, "read-write")
    """`read-write`, or `read-only`: nothing is uploaded."""
    remote_timeout: float = _setting(setting_values.as_seconds, 1.0)
    """Seconds that one lookup in the remote cache may take. A remote that fails is left alone for a while."""
    remote_wait: float | None = _setting(setting_values.as_wait, None)
    """Seconds to wait for a graph that another machine is compiling for the remote cache, before it is compiled on this
    machine as well. None (`auto`): twice as long as the longest of this process's last compiles, at least 30 s. 0: no
    machine waits."""
    farm: str | None = _setting(setting_values.as_farm, None)
    """Address of machines that compile for this host: ``dask://scheduler:8786``, ``dask+tls://`` or
    ``ray://head:10001``. Only machines with the same builds get a graph; `remote_key_file` authenticates both ways."""
    farm_wait: float = _setting(setting_values.as_seconds, 30.0)
    """Seconds to wait for a farm's result, before the graph is compiled on this host as well; twice the time of the
    farm's last jobs, if that is more."""
    pool: str = _setting(setting_values.as_pool, "host")
    """`host`: one server and its workers for all processes of this user and environment. `embedded`: a server that
    lives and dies with this process. `off`: everything compiles in this process."""
    workers: int | None = _setting(setting_values.as_workers, None)
    """Number of jobs that may run at once; None: as many as CPU affinity, the CPU quota and memory allow."""
    strict: bool = _setting(setting_values.as_bool, False)
    """Raise an error instead of falling back to an ordinary compile."""
    job_timeout: float = _setting(setting_values.as_seconds, 3600.0)
    """Seconds that one attempt to compile a graph may take."""
    job_memory: int | None = _setting(setting_values.as_job_memory, None)
    """Bytes that the processes of one compile may take together; None: half of the host's or the cgroup's memory, and
    more on small hosts (`fxpool.pool.host.memory`)."""
    memory_high_watermark: float = _setting(setting_values.as_part, 0.9)
    """Part of the host's or the cgroup's memory. While more is in use, no compile starts beside a running one."""
    idle_timeout: float = _setting(setting_values.as_seconds, 120.0)
    """Seconds without a client after which the host's server exits."""
    runtime_dir: Path | None = _setting(setting_values.as_path, None)
    """Directory of sockets and logs. A socket's path is limited to about 100 bytes: for a longer directory name, they
    are under ``/tmp``. None: a directory that `fxpool.pool.host.runtime_dir` chooses, after checking who owns it."""
    mode: str = _setting(setting_values.as_mode, "subprocess", variable=_MODE_VARIABLE)
    """Where a graph is compiled, and whether the program waits: one of `WORKING_MODES`."""
    stages: tuple[str | Mapping[str, Any], ...] = _setting(setting_values.as_stages, ({}, {"max_autotune": True}))
    """Stages that progressive modes compile one after another, each as Inductor options or the name of a torch.compile
    mode."""
    stage_calls: int = _setting(setting_values.as_calls, 0)
    """Number of calls that time a new stage against the current one; 0: a later stage always replaces it."""
    regions: str = _setting(setting_values.as_regions, "auto")
    """Whether to cut graphs into pieces, so that equal blocks of a model are compiled once and pieces side by side:
    `on`, `off`, or `auto`: for the first stage of ``async+`` and ``progressive+`` modes, if clearly faster."""
    capture: Path | None = _setting(setting_values.as_path, None)
    """Directory to record graphs in for ``fxpool build``, instead of compiling them: they run eagerly."""
    frames: str = _setting(setting_values.as_frames, "off")
    """Whether to keep what Dynamo makes of a function, and to serve it in other processes without tracing, if nothing
    that tracing depended on has changed: `on`, `off`, or `verify`: trace anyway, and warn if the result differs."""
    progress: str = _setting(setting_values.as_progress, "")
    """`on`: show the progress of each graph on standard error; a path: write it to that file, line by line."""
    trace: Path | None = _setting(setting_values.as_path, None)
    """File for a trace of the run, for Perfetto or chrome://tracing."""
    freeze_objects: bool = _setting(setting_values.as_bool, True)
    """Keep the program's objects out of full garbage collections while Dynamo traces. Torch 2.15 defers those."""
    untested_torch: bool = _setting(setting_values.as_bool, False)
    """Try a torch newer than any that fxpool was tested with. Where it does not fit, Inductor compiles the graph."""

    @property
    def job_limits(self) -> dict[str, Any]:
        """The settings ``job_...`` by the names of the fields of `fxpool.pool.JobSpec`, without that prefix."""
        return {name[4:]: getattr(self, name) for name in _TABLE if name.startswith("job_")}

    @property
    def keeps_frames(self) -> bool:
        """Whether frames are kept and served: not while graphs are recorded, which needs their tracing."""
        return self.frames != "off" and self.capture is None


_TABLE: dict[str, _Row] = {field.name: field.metadata["row"] for field in dataclasses.fields(Settings)}
_VARIABLES = {row.variable or _PREFIX + name.upper(): name for name, row in _TABLE.items()}
# Includes the variables that the defaults depend on.
_WATCHED = (*_VARIABLES, _CONFIG_VARIABLE, "HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")

# The default of the parameters of `configure`, of which None removes a value.
_UNSET: Any = ...
_Path: TypeAlias = "str | os.PathLike[str] | None"
_Number: TypeAlias = int | str | None
_Seconds: TypeAlias = float | str | None
_Switch: TypeAlias = bool | str | None

_lock = forks.lock(__name__, "_lock", lambda: _forget())
_calls: dict[str, Any] = {}
# The sources of the settings, the settings, and why the cache is not in the home.
_cached: tuple[tuple[object, ...], Settings, str] | None = None


def current() -> Settings:
    """Return the settings in force now.

    Reads some fifteen environment variables and the file's modification time, under 0.1 ms, and parses
    only if one of them changed. Raises `ConfigurationError`.
    """
    return _current()[0]


def why_temporary() -> str:
    """Return why the default cache directory is in the temporary directory and not in the home, or "".

    Raises `ConfigurationError`.
    """
    return _current()[1]


def trusted_owners() -> frozenset[int]:
    """Return the uids whose directories and links are trusted: this user's, root's and those of `trusted_owners`."""
    try:
        named = current().trusted_owners
    except FxpoolError:
        named = ()  # the error is reported where the settings are used
    return frozenset((os.geteuid(), 0, *named))


def _current() -> tuple[Settings, str]:
    global _cached
    path = _config_file()
    seen = _fingerprint(path)
    cached = _cached
    if cached is not None and cached[0] == seen:
        return cached[1:]
    with _lock:
        chosen = {**_read_file(path), **_read_environment(), **_calls}
        values = {name: chosen[name] if name in chosen else row.default() for name, row in _TABLE.items()}
        why = ""
        if "cache_dir" not in chosen:
            wanted = values["cache_dir"]
            trusted = (os.geteuid(), 0, *values["trusted_owners"])
            cache = directories.default_cache(None if wanted is None else os.path.abspath(wanted), trusted)
            values["cache_dir"], why = Path(cache.path), cache.why
            if cache.base is not None and "cache_base" not in chosen:
                values["cache_base"] = Path(cache.base)  # its entries can be read
        settings = Settings(**values)
        _cached = (seen, settings, why)
        return settings, why


def sources() -> dict[str, str]:
    """Return the source of each setting: ``default``, the file's path, the variable's name or ``configure()``.

    Raises `ConfigurationError`.
    """
    path = _config_file()
    return {
        **dict.fromkeys(_TABLE, "default"),
        **dict.fromkeys(_read_file(path), str(path)),
        **{_VARIABLES[variable]: variable for variable in _VARIABLES if os.environ.get(variable)},
        **dict.fromkeys(_calls, "configure()"),
    }


def parser(name: str) -> Callable[[object], Any]:
    """Return the parser of a setting."""
    return _TABLE[name].parse


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return _TABLE[name].variable or _PREFIX + name.upper()


def descriptions() -> dict[str, str]:
    """Return the docstring of each field of `Settings`, on one line. Raises OSError without the source file."""
    # Imported late: no compile needs them.
    import ast  # as said above
    import inspect  # as said above

    (settings,) = ast.parse(inspect.getsource(Settings)).body
    assert isinstance(settings, ast.ClassDef)
    texts: dict[str, str] = {}
    name = ""
    for node in settings.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            texts[name] = " ".join(str(node.value.value).split())
    return texts


def configure(
    *,
    cache_dir: _Path = _UNSET,
    cache_base: _Path = _UNSET,
    trusted_owners: str | int | Sequence[str | int] | None = _UNSET,
    cache_max_bytes: _Number = _UNSET,
    cache_max_files: _Number = _UNSET,
    cache_min_seconds: _Seconds = _UNSET,
    keep_requests: _Switch = _UNSET,
    remote_cache: str | None = _UNSET,
    remote_key_file: _Path = _UNSET,
    remote_use: str | None = _UNSET,
    remote_timeout: _Seconds = _UNSET,
    remote_wait: _Seconds = _UNSET,
    farm: str | None = _UNSET,
    farm_wait: _Seconds = _UNSET,
    pool: str | None = _UNSET,
    workers: _Number = _UNSET,
    strict: _Switch = _UNSET,
    job_timeout: _Seconds = _UNSET,
    job_memory: _Number = _UNSET,
    memory_high_watermark: float | str | None = _UNSET,
    idle_timeout: _Seconds = _UNSET,
    runtime_dir: _Path = _UNSET,
    mode: str | None = _UNSET,
    stages: Sequence[str | Mapping[str, Any]] | str | None = _UNSET,
    stage_calls: _Number = _UNSET,
    regions: _Switch = _UNSET,
    capture: _Path = _UNSET,
    frames: _Switch = _UNSET,
    progress: bool | _Path = _UNSET,
    trace: _Path = _UNSET,
    freeze_objects: _Switch = _UNSET,
    untested_torch: _Switch = _UNSET,
    **unknown: NoReturn,
) -> Settings:
    """Set values for this process; they override environment and file. None removes a value set here.

    The parameters are the fields of `Settings`. A value may be text in the form of the environment and the file:
    ``"10G"`` for bytes, ``"2m"`` for seconds, ``"auto"`` or ``"none"`` where a setting has them.

    Return the settings now in force. Change nothing if any of these is raised.

    Raises:
        errors.UnknownNameError: a name is unknown; the error suggests a similar name.
        errors.ConfigurationError: a value does not parse, here or in the environment or the file.
    """
    global _calls, _cached
    values = {**locals()}
    settings = {**{name: value for name, value in values.items() if name in _TABLE and value is not _UNSET}, **unknown}
    parsed = {
        name: _parse(name, value, f"configure({name}=...)") for name, value in _known(settings) if value is not None
    }
    with _lock:
        others = {name: value for name, value in _calls.items() if name not in settings}
        _calls = {**others, **parsed}  # one assignment, because a fork may come between two
        _cached = None
    return current()


def override(settings: Settings, values: Mapping[str, object], where: str = "options") -> Settings:
    """Return `settings` with `values` on top, as `torch.compile(..., options={...})` sets them for one graph.

    `where` names the source in errors. Raises `UnknownNameError`, `ConfigurationError`.
    """
    changed = {name: _parse(name, value, f"{where}[{name!r}]") for name, value in _known(values)}
    return dataclasses.replace(settings, **changed)


def reset() -> None:
    """Undo every `configure()` call and drop the cached settings."""
    global _cached
    with _lock:
        _calls.clear()
        _cached = None


def _forget() -> None:
    global _cached
    _cached = None


def _known(values: Mapping[str, object], kind: str = "setting") -> list[tuple[str, object]]:
    for name in values:
        if name not in _TABLE:
            raise UnknownNameError(kind, name, _TABLE)
    return list(values.items())


def _parse(name: str, value: object, where: str) -> Any:
    try:
        return _TABLE[name].parse(value)
    except setting_values.BadValue as bad:
        raise ConfigurationError(f"{where}: {value!r} is not {bad}", remedy=bad.remedy) from None


def _config_file() -> Path | None:
    explicit = os.environ.get(_CONFIG_VARIABLE)
    if not explicit:
        return _in_home("XDG_CONFIG_HOME", ".config", "fxpool/config.toml")
    try:
        return Path(explicit).expanduser()
    except RuntimeError:
        raise ConfigurationError(f"{_CONFIG_VARIABLE}: {explicit!r} is not {setting_values.NO_HOME}") from None


def _fingerprint(path: Path | None) -> tuple[object, ...]:
    file: object = None
    with contextlib.suppress(OSError):
        if path is not None:
            status = os.stat(path)
            file = (status.st_mtime_ns, status.st_size, status.st_ino)
    get = os.environ.get
    # Unknown variables count, so that a later misspelt variable is refused as well.
    ours = tuple(name for name in os.environ if name.startswith(_PREFIX))
    # The default cache directory is the effective user's.
    return (str(path), file, ours, os.geteuid(), *[get(name) for name in _WATCHED])


def _read_environment() -> dict[str, Any]:
    for name in os.environ:
        is_known = name in _VARIABLES or name in _OTHER_VARIABLES or not name.startswith(_PREFIX)
        if not is_known and not _KUBERNETES_LINK.fullmatch(name):
            raise UnknownNameError("environment variable", name, [*_VARIABLES, *_OTHER_VARIABLES])
    # An empty variable counts as unset, as in `FXPOOL_STRICT= python train.py`.
    return {
        name: _parse(name, os.environ[variable], variable)
        for variable, name in _VARIABLES.items()
        if os.environ.get(variable)
    }


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            content, status = file.read(), os.fstat(file.fileno())
    except FileNotFoundError:
        if os.environ.get(_CONFIG_VARIABLE):
            raise ConfigurationError(f"{_CONFIG_VARIABLE}: {path} does not exist") from None
        return {}
    except (NotADirectoryError, PermissionError) as error:
        if os.environ.get(_CONFIG_VARIABLE):
            raise ConfigurationError(f"{_CONFIG_VARIABLE}: cannot read {path}: {error.strerror}") from None
        return {}
    except OSError as error:
        raise ConfigurationError(f"{path} is not a readable TOML file: {error}") from None
    # Imported late: it takes 4 ms, and most users have no settings file.
    if sys.version_info >= (3, 11):
        import tomllib  # as said above
    else:
        import tomli as tomllib  # as said above
    try:
        table = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} is not a readable TOML file: {error}") from None
    settings = {name: _parse(name, value, f"{path}: {name}") for name, value in _known(table, f"setting in {path}")}
    if "trusted_owners" in settings:
        _require_own(path, status)
    return settings


def _require_own(path: Path, status: os.stat_result) -> None:
    """Raise ConfigurationError if another user could have written a file that names users to trust."""
    trusted = (0, os.geteuid())
    file = os.path.abspath(path)
    danger = directories.danger_of(file, status, trusted) or directories.danger_above(file, trusted)
    if danger is not None:
        raise ConfigurationError(
            f"{path}: trusted_owners: {danger.path} {danger.fault}, so another user could choose whom you trust",
            remedy=f"set {variable('trusted_owners')} in the environment, or make the file writable for you only",
        )
