"""Identify code that a program sets in the configuration, for keys: custom passes, estimators, choices.

An object with a ``uuid()`` is identified by that value, with which the user vouches for its behavior, and by the code
of its class, since users forget to change the uuid when they change the code. An object without ``uuid()`` is
identified by its content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fxpool.codecache.code import sources
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
    asked, uuid = value, _uuid(value)
    if uuid is None and name.endswith("_class") and callable(value):
        asked = value()  # a factory: Inductor takes the uuid of the object that it returns
        uuid = _uuid(asked)
    if uuid is not None:
        if uuid[0] is None:
            raise Bypass("custom_pass_without_uuid", name)
        return {"uuid": uuid[0] if isinstance(uuid[0], _PLAIN) else repr(uuid[0]), "code": _code_of(asked)}
    try:
        return {"content": _content(value)}
    except sources.UndigestableError as error:
        raise Bypass("custom_pass_without_uuid", f"{name}: {error}") from error


def digests(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the digest of each configured value's content, or its uuid if the content has no digest.

    A value that a worker looks up by name is the same as in the client if their digests are equal.

    Raises UndigestableError: a value has neither digest nor uuid.
    """
    digest_by_name: dict[str, str] = {}
    for name, value in values.items():
        try:
            digest_by_name[name] = _content(value)
        except sources.UndigestableError as error:
            uuid = _uuid(value)
            if uuid is None or uuid[0] is None:
                raise sources.UndigestableError(f"{name}: {error.what}") from error
            digest_by_name[name] = f"uuid {uuid[0]!r}"
    return digest_by_name


def _uuid(value: Any) -> tuple[Any] | None:
    """Return an object's ``uuid()`` in a tuple, since it may be None; return None if the object has no such method."""
    method = getattr(value, "uuid", None)
    return (method(),) if callable(method) and not isinstance(value, type) else None


def _code_of(value: Any) -> str:
    """Return the digest of an object's class; "" if it can't be digested, since the uuid identifies the object."""
    try:
        return sources.digest_value(type(value))
    except sources.UndigestableError:
        return ""


def _content(value: Any) -> str:
    """Return the digest of code, of a container, or of an instance of a Python class with its state."""
    if isinstance(value, (list, tuple)):
        return sources.digest_value([_content(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return sources.digest_value(sorted(_content(item) for item in value))
    if isinstance(value, dict):
        return sources.digest_value({key: _content(item) for key, item in value.items()})
    return sources.digest_value(value)
