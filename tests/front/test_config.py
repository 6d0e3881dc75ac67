from __future__ import annotations

import dataclasses
import inspect
import os
import pwd
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import fxpool
from fxpool import config
from fxpool.errors import ConfigurationError, UnknownNameError


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FXPOOL_IDLE_TIMEOUT")


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fxpool.toml"
    monkeypatch.setenv("FXPOOL_CONFIG", str(path))
    return path


def test_call_wins_over_environment_over_file_over_default(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_file.write_text("")
    assert config.current().workers is None
    settings_file.write_text("workers = 3")
    assert config.current().workers == 3
    monkeypatch.setenv("FXPOOL_WORKERS", "4")
    assert config.current().workers == 4
    assert fxpool.configure(workers=5).workers == 5
    assert fxpool.configure(workers=None).workers == 4
    monkeypatch.delenv("FXPOOL_WORKERS")
    assert config.current().workers == 3


def test_the_same_object_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = config.current()
    assert config.current() is first
    monkeypatch.setenv("FXPOOL_STRICT", "1")
    assert config.current().strict and not first.strict


def test_every_setting_has_a_row_a_variable_and_a_default() -> None:
    fields = [field.name for field in dataclasses.fields(config.Settings)]
    assert fields == list(config._TABLE)
    *parameters, unknown = inspect.signature(fxpool.configure).parameters.values()
    assert [one.name for one in parameters] == fields
    assert unknown.annotation == "NoReturn", "a type checker refuses any other name"
    assert "FXPOOL_JOB_MEMORY" in config._VARIABLES
    assert config._VARIABLES["TORCHINDUCTOR_FX_COMPILE_MODE"] == "mode"
    assert "FXPOOL_MODE" not in config._VARIABLES


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FXPOOL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = config.current()
    assert settings.cache_dir == tmp_path / "fxpool"
    assert (settings.pool, settings.mode, settings.strict) == ("host", "subprocess", False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert config.current().cache_dir == Path("/home/somebody/.cache/fxpool")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("FXPOOL_JOB_MEMORY", "2G", 2 << 30),
        ("FXPOOL_JOB_MEMORY", "10 MiB", 10 << 20),
        ("FXPOOL_JOB_MEMORY", "4096", 4096),
        ("FXPOOL_WORKERS", "7", 7),
        ("FXPOOL_STRICT", "Yes", True),
        ("FXPOOL_STRICT", "off", False),
        ("FXPOOL_IDLE_TIMEOUT", "1.5", 1.5),
        ("FXPOOL_WORKERS", "auto", None),
        ("FXPOOL_POOL", "off", "off"),
        ("FXPOOL_JOB_TIMEOUT", "90", 90.0),
        ("FXPOOL_JOB_MEMORY", "8G", 8 << 30),
        ("FXPOOL_JOB_MEMORY", "auto", None),
        ("FXPOOL_MEMORY_HIGH_WATERMARK", "0.75", 0.75),
        ("FXPOOL_REMOTE_WAIT", "Auto", None),
        ("FXPOOL_REMOTE_WAIT", "0", 0.0),
        ("FXPOOL_REMOTE_WAIT", "2m", 120.0),
        ("TORCHINDUCTOR_FX_COMPILE_MODE", "SERIALIZE", "serialize"),
    ],
)
def test_values_are_read_from_text(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    monkeypatch.setenv(name, text)
    assert getattr(config.current(), config._VARIABLES[name]) == value


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_STRICT", "")
    assert config.current().strict is False


def test_paths_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert fxpool.configure(cache_dir="here").cache_dir == tmp_path / "here"
    assert fxpool.configure(cache_dir="~/there").cache_dir == tmp_path / "home" / "there"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("FXPOOL_WORKERS", "0", "at least 1"),
        ("FXPOOL_WORKERS", "many", "at least 1"),
        ("FXPOOL_JOB_MEMORY", "10X", "such as 500M"),
        ("FXPOOL_JOB_MEMORY", "0", "such as 500M"),
        ("FXPOOL_WORKERS", "-1", "at least 1"),
        ("FXPOOL_STRICT", "maybe", "true"),
        ("FXPOOL_IDLE_TIMEOUT", "nan", "seconds"),
        ("FXPOOL_IDLE_TIMEOUT", "soon", "seconds"),
        ("FXPOOL_POOL", "swimming", "embedded"),
        ("FXPOOL_JOB_TIMEOUT", "0", "more than 0"),
        ("FXPOOL_JOB_MEMORY", "half", "or auto"),
        ("FXPOOL_MEMORY_HIGH_WATERMARK", "90", "at most 1"),
        ("FXPOOL_POOL", "tcp://there:1", "not supported yet"),
        ("FXPOOL_REMOTE_WAIT", "long", "0, or auto"),
        ("FXPOOL_STAGES", "max-autotune", "as JSON"),
        ("FXPOOL_STAGES", "[]", "max_autotune"),
        ("FXPOOL_STAGES", "[1]", "max_autotune"),
        ("FXPOOL_STAGE_CALLS", "-1", "or 0"),
    ],
)
def test_a_bad_value_names_its_variable_and_what_is_expected(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigurationError) as caught:
        config.current()
    assert name in str(caught.value) and repr(text) in str(caught.value) and expected in str(caught.value)


@pytest.mark.parametrize("mode", ["progressive+normal", "progressive+async+normal", "async+serialize"])
def test_the_background_is_for_workers(mode: str) -> None:
    with pytest.raises(ConfigurationError, match="workers compile") as caught:
        fxpool.configure(mode=mode)
    assert all(working in str(caught.value) for working in config.WORKING_MODES)
    assert mode.replace("normal", "subprocess").replace("serialize", "subprocess") in str(caught.value)
    assert fxpool.configure(mode=mode.rsplit("+", 1)[0] + "+subprocess").mode in config.WORKING_MODES


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ('[{}, {"max_autotune": true}]', ({}, {"max_autotune": True})),
        ('["default", "max-autotune"]', ("default", "max-autotune")),
    ],
)
def test_stages_are_json_in_the_environment(
    text: str, stages: tuple[object, ...], monkeypatch: pytest.MonkeyPatch, settings_file: Path
) -> None:
    settings_file.write_text("")
    monkeypatch.setenv("FXPOOL_STAGES", text)
    assert config.current().stages == stages
    monkeypatch.delenv("FXPOOL_STAGES")
    settings_file.write_text(f"stages = {text.replace(':', ' =')}")
    assert config.current().stages == stages


@pytest.mark.parametrize(("value", "shown"), [("1", "on"), ("0", ""), ("x/log", None), (True, "on"), ("off", "")])
def test_progress_is_a_switch_or_a_path(value: str | bool, shown: str | None) -> None:
    assert fxpool.configure(progress=value).progress == (os.path.abspath("x/log") if shown is None else shown)


@pytest.mark.parametrize("mode", ["async", "subprocess+async", "async+progressive+normal", "", "fast"])
def test_what_is_no_mode_of_torch_is_refused_with_the_grammar(mode: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\[progressive\+\]\[async\+\]"):
        fxpool.configure(mode=mode)


def test_an_unknown_name_lists_the_known_ones(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file.write_text("")
    with pytest.raises(UnknownNameError, match="cache_dir") as caught:
        fxpool.configure(cachedir="/x")  # type: ignore[arg-type]
    assert caught.value.name == "cachedir"
    settings_file.write_text("cachedir = '/x'")
    with pytest.raises(UnknownNameError, match=r"fxpool\.toml"):
        config.current()
    settings_file.write_text("")
    monkeypatch.setenv("FXPOOL_CACHEDIR", "/x")
    with pytest.raises(UnknownNameError, match="FXPOOL_CACHE_DIR"):
        config.current()


def test_variables_that_kubernetes_injects_for_a_service_of_that_name_are_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "FXPOOL_SERVICE_HOST",
        "FXPOOL_PORT",
        "FXPOOL_PORT_80_TCP_ADDR",
        "FXPOOL_SERVICE_PORT_HTTP",
        "FXPOOL_FARM_SERVICE_HOST",
        "FXPOOL_FARM_PORT_8786_TCP",
    ):
        monkeypatch.setenv(name, "x")
    assert config.current().pool == "host"


def test_configure_changes_all_or_nothing() -> None:
    fxpool.configure(workers=2)
    with pytest.raises(ConfigurationError):
        fxpool.configure(workers=3, strict="maybe")
    assert config.current().workers == 2


def test_options_of_one_graph_go_over_the_settings() -> None:
    settings = config.current()
    assert config.override(settings, {"strict": True}).strict and not settings.strict
    with pytest.raises(ConfigurationError, match=r"options\['mode'\]"):
        config.override(settings, {"mode": "x"})


@pytest.mark.parametrize(("content", "word"), [("workers = ", "TOML"), ("workers = true", "workers")])
def test_a_bad_file_is_named(settings_file: Path, content: str, word: str) -> None:
    settings_file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"fxpool\.toml") as caught:
        config.current()
    assert word in str(caught.value)


def test_a_file_that_was_asked_for_must_exist(settings_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="FXPOOL_CONFIG"):
        config.current()
    monkeypatch.delenv("FXPOOL_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings_file.parent / "nowhere"))
    assert config.current().pool == "host"


@pytest.mark.parametrize("fault", ["all users", "directory", "another user"])
def test_only_a_file_of_ours_says_whom_to_trust(settings_file: Path, fault: str) -> None:
    settings_file.write_text("workers = 3\ntrusted_owners = '12345'\n")
    assert config.current().trusted_owners == (12345,)
    if fault == "all users":
        settings_file.chmod(0o666)
    elif fault == "directory":
        settings_file.parent.chmod(0o777)
    elif os.geteuid():
        pytest.skip("needs root")
    else:
        os.chown(settings_file, 12345, -1)
    os.utime(settings_file, (1, 1))  # so that it is read again
    with pytest.raises(ConfigurationError, match="could choose whom you trust") as caught:
        config.current()
    assert str(settings_file) in str(caught.value) and "FXPOOL_TRUSTED_OWNERS" in str(caught.value)
    settings_file.write_text("workers = 3\n")
    assert config.current().workers == 3


def test_the_file_is_found_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FXPOOL_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "fxpool").mkdir()
    (tmp_path / "fxpool" / "config.toml").write_text("strict = true\nidle_timeout = 5")
    assert config.current().strict and config.current().idle_timeout == 5.0


# --- homes -------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that stands in for a home's, without a setting for the cache."""
    monkeypatch.delenv("FXPOOL_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert config.current().cache_dir == tmp_path / "home" / ".cache" / "fxpool" and config.why_temporary() == ""
    return tmp_path / f"fxpool-cache-{os.geteuid()}"


def _without_passwd_entry(uid: int) -> pwd.struct_passwd:
    raise KeyError(uid)


@pytest.mark.parametrize("value", [None, "", "~", "relative"])
def test_without_a_home_the_cache_is_in_the_temporary_directory(
    value: str | None, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", _without_passwd_entry)
    monkeypatch.delenv("HOME")
    if value is not None:
        monkeypatch.setenv("HOME", value)
    assert config.current().cache_dir == temporary and config.current().cache_base is None
    expected = "HOME is not set and uid" if not value else f"HOME is {value!r}, which is no absolute path"
    assert config.why_temporary().startswith(expected)
    assert not temporary.exists(), "looking does not create it"


def test_an_empty_home_is_that_of_the_passwd_entry(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(("me", "x", uid, 0, "", "/proc", "")))
    monkeypatch.setattr(os, "access", lambda *_, **__: True)
    assert config.current().cache_dir == Path("/proc/.cache/fxpool")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda home: home.chmod(0o777), "home belongs to .* is writable by all users .mode 0777.*could replace"),
        (lambda home: (home / ".cache").touch(), r"\.cache is not a directory"),
        (lambda home: (home / ".cache").symlink_to("nowhere"), r"\.cache: No such file"),
        (lambda home: os.chown(home, 12345, 12345), r"home belongs to uid 12345"),
        (lambda home: _own_cache(home, 0o777), "fxpool belongs to .* has mode 0777"),
    ],
)
def test_a_home_that_cannot_hold_the_cache(spoil: Callable[[Path], object], why: str, temporary: Path) -> None:
    home = temporary.with_name("home")
    try:
        spoil(home)
    except PermissionError:
        pytest.skip("only root can give a directory away")
    config.reset()
    assert config.current().cache_dir == temporary and config.current().cache_base is None
    assert re.search(why, config.why_temporary())


def _own_cache(home: Path, mode: int) -> Path:
    path = home / ".cache" / "fxpool"
    path.mkdir(parents=True)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("disk", ["read-only", "closed"])
def test_a_cache_that_can_only_be_read_is_the_base(disk: str, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = _own_cache(temporary.with_name("home"), 0o700)
    monkeypatch.setattr(os, "access", lambda path, mode, **_: not mode & os.W_OK)
    flag = os.ST_RDONLY if disk == "read-only" else 0
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flag))
    config.reset()
    assert (config.current().cache_dir, config.current().cache_base) == (temporary, own)
    assert ("is on a read-only disk" if flag else f"may not write to {own}") in config.why_temporary()
    monkeypatch.setenv("FXPOOL_CACHE_BASE", "/opt/cache")
    assert config.current().cache_base == Path("/opt/cache")
    monkeypatch.setenv("FXPOOL_CACHE_DIR", "/data")
    assert config.current().cache_dir == Path("/data") and config.why_temporary() == ""


def test_a_home_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "~")
    with pytest.raises(
        ConfigurationError, match=r"FXPOOL_CACHE_DIR: '~/cache' is not .*home directory that is unknown"
    ):
        monkeypatch.setenv("FXPOOL_CACHE_DIR", "~/cache")
        config.current()
    monkeypatch.delenv("FXPOOL_CACHE_DIR")
    monkeypatch.setenv("FXPOOL_CONFIG", "~/fxpool.toml")
    with pytest.raises(ConfigurationError, match=r"FXPOOL_CONFIG: '~/fxpool.toml' is not"):
        config.current()
