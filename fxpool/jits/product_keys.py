"""The digest of a key of `fxpool.once`: the same in every process, on every machine and in every version of Python.

    value    None | bool | int | float | str | bytes | sequence | set | mapping       of values
    bytes    tag, length, content: no two values have the same bytes

A list equals a tuple with the same items, and an object of a subclass (``torch.__version__``, an IntEnum) the plain
value. Other objects are refused: their ``repr`` or ``hash`` may differ between processes, or stay the same although
their content has changed.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence, Set
from typing import Any

__all__ = ["BYTES", "DIRECTORY", "TRITON", "described", "digest"]

#: The forms of a product, which are in its key.
BYTES, DIRECTORY, TRITON = "bytes", "directory", "triton"

_FORM = 1
_LONGEST_TEXT = 100


def digest(key: Any, version: Any, form: str) -> str:
    """Return the digest of a key, in lower-case hex. Raises TypeError for values that are not plain data.

    The machine's architecture is in the digest, because products are mostly machine code.
    """
    try:
        encoded = _encoded(("fxpool.once", _FORM, form, platform.machine(), version, key))
    except RecursionError:
        raise TypeError("the key of fxpool.once is nested too deeply, or contains itself") from None
    return hashlib.sha256(encoded).hexdigest()


def described(key: Any) -> str:
    """Return a key as a short text, for people."""
    parts = key if isinstance(key, Sequence) and not isinstance(key, (str, bytes)) else (key,)
    text = ", ".join(" ".join(part.split()) if isinstance(part, str) else repr(part) for part in parts)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 3]}..."


def _encoded(value: Any) -> bytes:
    """Return the bytes of a value. Raises TypeError."""
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return _tagged(b"i", b"%x" % int(value))
    if isinstance(value, float):
        return _tagged(b"d", float.hex(value).encode())
    if isinstance(value, str):
        return _tagged(b"s", str.encode(value, "utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _tagged(b"b", bytes(value))
    if isinstance(value, Mapping):
        pairs = sorted((_encoded(name), _encoded(item)) for name, item in value.items())
        return _tagged(b"m", b"".join(name + item for name, item in pairs))
    if isinstance(value, Set):
        return _tagged(b"e", b"".join(sorted(map(_encoded, value))))
    if isinstance(value, (list, tuple)):
        return _tagged(b"l", b"".join(map(_encoded, value)))
    kind = type(value)
    raise TypeError(
        f"the key of fxpool.once contains {kind.__module__}.{kind.__qualname__}, which has no stable digest: use str, "
        "bytes, numbers, and sequences or mappings of them; of a file, use its content"
    )


def _tagged(tag: bytes, content: bytes) -> bytes:
    return tag + b"%d:" % len(content) + content
