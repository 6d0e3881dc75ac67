"""fxpool's entries among the artifacts of `torch.compiler.save_cache_artifacts()` and `load_cache_artifacts()`.

    hit, compile ──▶ record ──▶ torch's manager ──save──▶ `read`: the bytes, only now ──▶ the program's file
    the program's file ──load──▶ torch's factory: a type by name ──▶ `restore`: into the cache directory

A record is a reference. A process that loads a file must know the type, or torch refuses the whole file; so `register`
is called when torch has been imported (`fxpool.torch_import`).

`torch.compiler._cache` is imported by torch itself. Read in 2.11 to 2.15, where it is the same.

`watch_clearing` reports the calls by which a program clears torch's caches on disk, which still do their work. They are
static methods of classes that a program may have imported by name, so the method is replaced, not the class.
"""

from __future__ import annotations

import collections
import functools
import importlib
import sys
import types
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["TYPE", "record", "register", "watch_clearing"]

#: The name of the type: ``CacheInfo.fxpool_artifacts`` lists the keys.
TYPE = "fxpool"
_MODULE = "torch.compiler._cache"


def register(read: Callable[[Any], bytes], restore: Callable[[str, bytes], None]) -> bool:
    """Register the type with torch; return whether it is registered. Idempotent, and never raises.

    `read` turns a reference into bytes when the program saves; `restore` writes such bytes to the cache when it loads
    (with the key they were recorded under). Neither may raise: torch would fail the program's call.
    """
    try:
        module = sys.modules.get(_MODULE) or importlib.import_module(_MODULE)
        known = module.CacheArtifactFactory._artifact_types
        if TYPE not in known:
            module.CacheArtifactFactory.register(_made(module.CacheArtifact, read, restore))
        return TYPE in known
    except Exception as error:  # another thread did it, or an untested torch is built otherwise
        _log_failure("fxpool's entries", error)
        return False


def _made(base: Any, read: Callable[[Any], bytes], restore: Callable[[str, bytes], None]) -> Any:
    class FxpoolCacheArtifact(base):
        """One entry: a reference to it if it was recorded, its bytes if it was loaded."""

        def __init__(self, key: str, content: Hashable) -> None:
            # `base` is a frozen dataclass, whose own __init__ would also set `content`.
            object.__setattr__(self, "key", key)
            object.__setattr__(self, "held", content)

        @property
        def content(self) -> bytes:
            return self.held if isinstance(self.held, bytes) else read(self.held)

        def __eq__(self, other: object) -> bool:
            return type(other) is type(self) and (self.key, self.held) == (other.key, other.held)

        def __hash__(self) -> int:
            return hash((self.key, self.held))

        @staticmethod
        def encode(content: Any) -> Any:
            return content

        @staticmethod
        def type() -> str:
            return TYPE

        def populate_cache(self) -> None:
            restore(self.key, self.content)

    return FxpoolCacheArtifact


def record(key: str, reference: Hashable) -> bool:
    """Include `reference` in the next save, which reads its bytes. Needs `register`. Never raises.

    Returns whether it will be included.
    """
    try:
        module = sys.modules[_MODULE]
        manager, kind = module.CacheArtifactManager, module.CacheArtifactFactory._artifact_types[TYPE]
        artifact = kind(key, reference)
        if artifact in manager._seen_artifacts:
            return True
        if waiting := manager._new_cache_artifacts.get(TYPE):
            waiting.append(artifact)
        else:
            # A new table: another thread may be iterating over the current one, which must not grow during that.
            table = collections.defaultdict(list, manager._new_cache_artifacts)
            table[TYPE] = [*_saved_before(manager, kind), artifact]
            manager._new_cache_artifacts = table
        manager._seen_artifacts.add(artifact)
    except Exception as error:  # an untested torch is built otherwise
        _log_failure("an entry", error)
        return False
    return True


def _saved_before(manager: Any, kind: Any) -> list[Any]:
    """Return the artifacts of an earlier save, to be saved again with the new ones.

    The bytes of a second save contain two lists of one type, and torch loads only the last of them (2.11 to 2.15).
    """
    again = [one for one in list(manager._seen_artifacts) if type(one) is kind]
    if again:  # torch adds them again to the information about the next save
        manager._cache_info.artifacts.pop(TYPE, None)
    return again


_CACHES = (
    ("torch._inductor.codecache", "FxGraphCache"),
    ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache"),
)
_watching: dict[str, object] = {}


def watch_clearing(cleared: Callable[[str], None]) -> None:
    """From now on, call `cleared` with the name of the class whose cache was cleared. Idempotent."""
    first = object()
    if _watching.setdefault("first", first) is not first:  # atomic: of several threads, one goes on
        return
    from fxpool.torch_compat.patching import when_imported  # every program that imports torch imports this module

    for module, name in _CACHES:
        when_imported(module, functools.partial(_replace, name, cleared))


def _replace(name: str, cleared: Callable[[str], None], module: types.ModuleType) -> None:
    owner = getattr(module, name)
    original = owner.clear

    @functools.wraps(original)
    def clear() -> None:
        original()
        cleared(name)

    owner.clear = staticmethod(clear)


def _log_failure(entries: str, error: Exception) -> None:
    from fxpool import notices  # late, as above

    notices.logger(__name__).debug("could not add %s to torch's cache artifacts: %r", entries, error)
