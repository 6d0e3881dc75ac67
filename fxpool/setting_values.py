"""Parsers for the values of settings.

A parser takes a value from a call, a variable or a file. It returns the parsed value or raises `BadValue`.

json is imported inside functions: few settings are lists.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fxpool import quantities, remote_stores

__all__ = [
    "NONE_WORDS", "NO_HOME", "SIZES", "WORKING_MODES", "WORKING_POOLS", "BadValue", "as_address", "as_bool", "as_bytes",
    "as_calls", "as_count", "as_farm", "as_frames", "as_job_memory", "as_limit", "as_mode", "as_part", "as_path",
    "as_pool", "as_progress", "as_regions", "as_remote_use", "as_seconds", "as_seconds_or_none", "as_stages",
    "as_users", "as_wait", "as_workers", "size_text", "without_secrets",
]  # fmt: skip

_T = TypeVar("_T")

WORKING_MODES = (
    "normal",
    "serialize",
    "subprocess",
    "async+subprocess",
    "progressive+subprocess",
    "progressive+async+subprocess",
)
WORKING_POOLS = ("embedded", "host", "off")
# Up to the last @, because passwords may contain @ and /.
_USER = re.compile(r"(?<=://)[^\s\"']*@")
_QUERY = re.compile(r"(://[^\s?\"']*\?)[^\s\"']+")

NO_HOME = "a path that can be resolved: `~` stands for a home directory that is unknown"


class BadValue(ValueError):
    """A value that does not parse. `str()` names the expected value; `remedy` is a further hint."""

    def __init__(self, expected: str, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(expected)


def without_secrets(text: str) -> str:
    """Return a text with the users, passwords and queries of its URLs replaced by ``***``."""
    return _QUERY.sub(r"\1***", _USER.sub("***@", text))


def _or(word: str, parse: Callable[[object], _T]) -> Callable[[object], _T | None]:
    """Return a parser that parses `word` as None, and other values as `parse` does."""

    def parsed(value: object) -> _T | None:
        if isinstance(value, str) and value.strip().lower() == word:
            return None
        try:
            return parse(value)
        except BadValue as bad:
            raise BadValue(f"{bad}, or {word}", bad.remedy) from None

    return parsed


def as_path(value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise BadValue("a path")
    try:
        path = Path(value).expanduser()
    except RuntimeError:
        raise BadValue(NO_HOME) from None
    except TypeError as error:
        raise BadValue("a path") from error
    # Absolute, because a worker that reads it may have another working directory.
    try:
        return Path(os.path.abspath(path))
    except OSError:
        raise BadValue("an absolute path (needed because the working directory is gone)") from None


def as_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise BadValue("1, true, yes, on or 0, false, no, off")


def _whole(expected: str, least: int) -> Callable[[object], int]:
    def parsed(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise BadValue(expected)
        try:
            number = int(value)
        except ValueError:
            raise BadValue(expected) from None
        if number < least:
            raise BadValue(expected)
        return number

    return parsed


as_calls = _whole("a whole number of calls, or 0", 0)
_as_positive = _whole("a whole number of at least 1", 1)
as_workers = _or("auto", _as_positive)
as_count = _or("none", _as_positive)


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:I?B)?")


def as_bytes(value: object) -> int:
    expected = "a positive size such as 500M, 10G or a number of bytes"
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip().upper())
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if size < 1:
        raise BadValue(expected)
    return size


as_limit = _or("none", as_bytes)
as_job_memory = _or("auto", as_bytes)
#: The parsers of sizes in bytes.
SIZES: tuple[Callable[[object], object], ...] = (as_bytes, as_limit, as_job_memory)


def size_text(size: int) -> str:
    """Return bytes as they are written in a setting, in the largest unit of which they are a multiple: ``10G``."""
    for unit, bytes_of_it in reversed(_UNITS.items()):
        if size % bytes_of_it == 0:
            return f"{size // bytes_of_it}{unit}"
    return str(size)


def as_seconds(value: object) -> float:
    if isinstance(value, str):
        try:
            return quantities.parse_duration(value)
        except ValueError:
            raise BadValue(quantities.DURATION_EXPECTED) from None
    return as_number(value, quantities.DURATION_EXPECTED, sys.float_info.max)


def as_number(value: object, expected: str, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadValue(expected)
    try:
        number = float(value)
    except ValueError:
        raise BadValue(expected) from None
    if not 0 < number <= most:
        raise BadValue(expected)
    return number


def as_part(value: object) -> float:
    return as_number(value, "a fraction, more than 0 and at most 1", 1.0)


def as_pool(value: object) -> str:
    text = str(value).strip()
    if text.lower() in WORKING_POOLS:
        return text.lower()
    remedy = "pools on other machines are not supported yet" if "://" in text else ""
    raise BadValue(" or ".join(WORKING_POOLS), remedy)


_MODE = re.compile(r"(progressive\+)?(async\+)?(normal|serialize|subprocess)")


def as_mode(value: object) -> str:
    working = ", ".join(WORKING_MODES)
    match = _MODE.fullmatch(str(value).strip().lower())
    if match is None:
        raise BadValue(f"[progressive+][async+]normal|serialize|subprocess; supported: {working}")
    if (match[1] or match[2]) and match[3] != "subprocess":
        remedy = f"in the background, workers compile: use {match[1] or ''}{match[2] or ''}subprocess"
        raise BadValue(f"a supported mode: {working}", remedy)
    return match[0]


def as_stages(value: object) -> tuple[str | Mapping[str, Any], ...]:
    expected = 'a list such as [{}, {"max_autotune": true}] or ["default", "max-autotune"]'
    if isinstance(value, str):
        import json

        try:
            value = json.loads(value)
        except ValueError:
            raise BadValue(f"{expected}, as JSON") from None
    if not isinstance(value, list | tuple) or not value:
        raise BadValue(expected)
    for stage in value:
        named = isinstance(stage, Mapping) and all(isinstance(name, str) for name in stage)
        if not named and not isinstance(stage, str):
            raise BadValue(expected)
    return tuple(stage if isinstance(stage, str) else dict(stage) for stage in value)


def _switch_or(word: str) -> Callable[[object], str]:
    def parsed(value: object) -> str:
        if str(value).strip().lower() == word:
            return word
        try:
            return "on" if as_bool(value) else "off"
        except BadValue as bad:
            raise BadValue(f"{word}, or {bad}") from None

    return parsed


as_regions = _switch_or("auto")
as_frames = _switch_or("verify")


def as_progress(value: object) -> str:
    """Parse a switch ("on" or "") or a path."""
    try:
        return "on" if as_bool(value) else ""
    except BadValue:
        return str(as_path(value))


def as_seconds_or_none(value: object) -> float:
    """Parse seconds; 0 is allowed."""
    if str(value).strip() in ("0", "0.0", "0s"):
        return 0.0
    try:
        return as_seconds(value)
    except BadValue as bad:
        raise BadValue(f"{bad}, 0") from None


as_wait = _or("auto", as_seconds_or_none)
#: The word for None, by parser.
NONE_WORDS: dict[Callable[[object], object], str] = {
    as_workers: "auto", as_job_memory: "auto", as_wait: "auto", as_limit: "none", as_count: "none",
}  # fmt: skip

_FARM = re.compile(r"(dask|dask\+tls|ray)://[^\s/]+:[0-9]+")
_ADDRESS = re.compile(r"([^\s:]+)://\S+")


def as_address(value: object) -> str:
    """Parse the address of a remote cache."""
    text = str(value).strip()
    address = _ADDRESS.fullmatch(text)
    if address is None or remote_stores.by_scheme(address[1]) is None:
        raise BadValue(f"an address such as {' or '.join(store.addresses for store in remote_stores.STORES)}")
    return text


def as_farm(value: object) -> str:
    """Parse the address of a farm."""
    text = str(value).strip()
    if not _FARM.fullmatch(text) or int(text.rpartition(":")[2]) > 65535:
        raise BadValue("an address such as dask://scheduler:8786, dask+tls://scheduler:8786 or ray://head:10001")
    return text


def as_users(value: object) -> tuple[int, ...]:
    """Parse names and numbers of users, in a list or with commas between them; return their uids."""
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    uids = []
    for part in parts:
        name = str(part).strip()
        try:
            uids.append(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except (KeyError, ValueError):
            raise BadValue("a list of users, by name or number, with commas between them") from None
    return tuple(uids)


def as_remote_use(value: object) -> str:
    """Parse the access to a remote cache."""
    text = str(value).strip().lower()
    if text not in ("read-write", "read-only"):
        raise BadValue("read-write or read-only")
    return text
