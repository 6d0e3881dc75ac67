"""Inductor's choices (how kernels are tiled, fused and tuned) as a program sets them, for keys and for workers.

A program can set them in three ways, which combine: the factory that the configuration names
(``inductor_choices_class``), factories registered by name (since 2.15, `register_inductor_choices`), and a handler set
for a thread. A thread that compiles without a handler makes one from the factories and keeps it. Such a handler is not
captured. The factories are, so a thread that has not compiled yet gets the same key as a thread that has.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch._dynamo  # noqa: F401  # first, see torch_compat
import torch._inductor.config as inductor_config

from fxpool.torch_compat.patching import patched

__all__ = ["HANDLER", "REGISTERED", "captured", "entered"]

#: Name of a handler that the program set for the thread, or of the list of handlers that it is composed of.
HANDLER = "virtualized.choices"
#: Name of the registered factories: [key, factory] in order, as the first with an opinion decides. The name's suffix
#: says that the values are factories, whose products' uuids go into a key.
REGISTERED = "choices.registered_class"

_MODULE = "torch._inductor.choices"


def captured() -> dict[str, Any]:
    """Return choices that the program set outside the configuration, by `REGISTERED` and `HANDLER`; usually empty."""
    code: dict[str, Any] = {}
    if registered := _registered():
        code[REGISTERED] = [[key, factory] for key, factory in registered.items()]
    handler = _handler()
    if handler is not None and not _is_made_by_factories(handler):
        code[HANDLER] = _parts(handler)
    return code


def _registered() -> dict[str, Any]:
    return dict(getattr(sys.modules.get(_MODULE), "_registered_inductor_choices", {}))


def _handler() -> Any:
    """Return this thread's handler; None without one, or if it is torch's own, which other threads may not have yet."""
    virtualized = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None:  # no compile has run here, so no handler is set
        return None
    handler = getattr(virtualized.threadlocal, virtualized._choices._key, None)
    if handler is None or _composed(handler):
        return handler
    return None if type(handler).__module__.startswith("torch.") else handler


def _composed(handler: Any) -> bool:
    """Return whether torch composed the handler of several, including the program's."""
    kind = getattr(sys.modules.get(_MODULE), "_ComposedInductorChoices", None)
    return kind is not None and type(handler) is kind


def _parts(handler: Any) -> Any:
    # A composed handler also caches its earlier queries, which must not count.
    return list(handler._choices) if _composed(handler) else handler


def _is_made_by_factories(handler: Any) -> bool:
    """Return whether the current factories make a handler equal to this one, by classes and uuids."""
    factory = getattr(inductor_config, "inductor_choices_class", None)
    if factory is None and not _registered():
        return False
    try:
        expected = _made(factory, _registered())
        return _described(expected) == _described(handler)
    except Exception:  # the program's code may raise anything: the handler then counts as set by the program
        return False


def _described(handler: Any) -> list[Any]:
    parts = _parts(handler)
    return [(type(part), part.uuid()) for part in (parts if isinstance(parts, list) else [parts])]


def _made(factory: Any, registered: dict[str, Any]) -> Any:
    """Return the handler that torch makes from these factories."""
    from torch._inductor import choices

    if not registered:
        return factory() if factory is not None else choices.InductorChoices()
    return choices._create_inductor_choices(factory, tuple(registered.items()))


@contextlib.contextmanager
def entered(code: dict[str, Any]) -> Iterator[None]:
    """Apply a program's choices: a thread that compiled before may have others.

    Enter this before the configuration, so that the handler restored afterwards is made by this process's own.
    """
    registered = dict(code.get(REGISTERED, ()))
    factory = code.get("inductor.inductor_choices_class")
    with contextlib.ExitStack() as stack:
        if HANDLER in code or factory is not None or registered or _handler() is not None:
            from torch._inductor.virtualized import V

            handler = _sent(code[HANDLER]) if HANDLER in code else _made(factory, registered)
            stack.enter_context(V.set_choices_handler(handler))
        if list(registered.items()) != list(_registered().items()):
            from torch._inductor import choices

            # Other threads of this process make their handlers from these factories, too.
            stack.enter_context(patched(choices, "_registered_inductor_choices", registered))
        yield


def _sent(handler: Any) -> Any:
    """Rebuild the handler that `_parts` took apart."""
    if not isinstance(handler, list):
        return handler
    from torch._inductor import choices

    return choices._ComposedInductorChoices(handler)
