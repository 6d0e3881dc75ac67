"""Identify code that a program sets in the configuration, for keys: custom passes, estimators, choices.

An object with a ``uuid()`` is identified by that value, with which the user vouches for its behavior, and by the code
of its class, since users forget to change the uuid when they change the code. An object without ``uuid()`` has
to be a function, or plain data, within the grammar of `codecache.code`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from fxpool.codecache.code.grammar import UnprovenError
from fxpool.codecache.code.program_code import code_of
from fxpool.codecache.code.proof import digest_of
from fxpool.codecache.key.cacheable import Bypass

__all__ = ["digests", "identity"]

_PLAIN = (str, bytes, int, float, type(None))


def identity(name: str, value: Any) -> Any:
    """Return plain data that distinguishes a configured value from every value with other behavior.

    Raises:
        Bypass: the uuid is None, which forbids caching, or there is no uuid and the code has no digest.
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [identity(name, item) for item in value]
    vouched = _vouched(name, value)
    if vouched is not None:
        asked, uuid = vouched
        if uuid is None:
            raise Bypass("custom_pass_without_uuid", name)
        return {"uuid": uuid if isinstance(uuid, _PLAIN) else repr(uuid), "code": code_of(asked)}
    try:
        return {"content": _content(value)}
    except UnprovenError as error:
        raise Bypass("custom_pass_without_uuid", f"{name}: {error}") from error


def digests(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each configured value's code, or its uuid with the code of its class.

    A value that a worker looks up by name is the same as in the client if their digests are equal.

    Raises UnprovenError: a value has no uuid, and is outside the grammar.
    """
    digest_by_name: dict[str, str] = {}
    for name, value in values.items():
        vouched = _vouched(name, value)
        if vouched is not None and vouched[1] is not None:
            digest_by_name[name] = f"uuid {vouched[1]!r} {code_of(vouched[0])}"
            continue
        try:
            digest_by_name[name] = _content(value)
        except UnprovenError as error:
            raise UnprovenError(f"{name}: {error.part}") from error
    return digest_by_name


def _vouched(name: str, value: Any) -> tuple[Any, Any] | None:
    """Return an object with its ``uuid()``, which may be None; return None if the object has no such method.

    Options whose names end in ``_class`` hold a factory: Inductor takes the uuid of the object that it returns.
    """
    if isinstance(value, type) or not hasattr(type(value), "uuid"):
        if not (name.endswith("_class") and callable(value)):
            return None
        value = value()
    return (value, value.uuid()) if callable(getattr(type(value), "uuid", None)) else None


def _content(value: Any) -> str:
    """Return the digest of code or plain data, also in containers. Raises UnprovenError."""
    return digest_of(_frozen(value), of_inductor=True)


def _frozen(value: Any) -> Any:
    """Return containers as tuples: a configured value is captured as it is now."""
    if type(value) in (list, tuple):
        return tuple(map(_frozen, value))
    if type(value) is functools.partial:
        return "partial", value.func, _frozen(value.args), _frozen(value.keywords)
    if type(value) in (set, frozenset):
        return tuple(sorted(_content(item) for item in value))
    if type(value) is dict:
        return tuple((_frozen(key), _frozen(item)) for key, item in sorted(value.items(), key=repr))
    return value
