"""Choices by time between candidates on the CPU: intercepts Inductor's lookups in its cache of times.

Under `max_autotune` lowering builds candidates for a matrix product (C++ templates, oneDNN, ATen), looks up their times
in a file of its cache directory, and times those that are missing. Here a `Times` object replaces that file, and
decides when timing may run. Candidates for a GPU are in `torch_compat.triton.autotuning`.

Source: torch/_inductor/codecache.py (PersistentCache) and select_algorithm.py, 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import torch
import torch._dynamo  # first, see torch_compat
import torch._inductor.config as inductor_config

from fxpool.torch_compat.patching import patched

__all__ = ["Selection", "Times", "answered"]


class Selection(msgspec.Struct, array_like=True, frozen=True):
    """The facts that candidates' times depend on, besides the machine and the configuration.

    `operation` is a name, `inputs` are metadata, `hint` is for dynamic sizes, `precision` is that of products,
    `candidates` are digests of their code.
    """

    operation: str
    inputs: str
    hint: int | None
    precision: str
    candidates: list[str]

    def identity(self) -> list[Any]:
        """Return the facts without the candidates, whose times are stored one by one."""
        return [self.operation, self.inputs, self.hint, self.precision]


class Times(Protocol):
    """Stored times of candidates, and exclusive use of the host to measure others."""

    def find(self, selection: Selection) -> dict[str, float] | None:
        """Return all candidates' times; None if any is unknown."""

    def alone(self, selection: Selection) -> contextlib.AbstractContextManager[None]:
        """Wait for exclusive use of the host; candidates are timed inside the ``with`` block."""

    def keep(self, selection: Selection, times: dict[str, float]) -> None:
        """Store measured times; infinite for a candidate that does not run."""


@contextlib.contextmanager
def answered(times: Times) -> Iterator[None]:
    """Let Inductor choose candidates for the CPU by `times`."""
    from torch._inductor import codecache

    # A release without this cache decides in another way, and does its own timing.
    cache: Any = getattr(codecache, "PersistentCache", None)
    if not hasattr(cache, "lookup"):
        yield
        return
    elsewhere = cache.lookup

    def lookup(
        self: Any,
        choices: Sequence[Any],
        op: str,
        inputs: str,
        benchmark: Callable[[Any], dict[Any, float]] | None,
        hint_override: int | None = None,
        **more: Any,
    ) -> dict[Any, float]:
        if not choices or not all(map(_is_on_cpu, choices)):
            return elsewhere(self, choices, op, inputs, benchmark, hint_override, **more)
        selection = Selection(
            op, inputs, hint_override, torch.get_float32_matmul_precision(), [c.hash_key() for c in choices]
        )
        keeping = bool(inductor_config.autotune_local_cache)
        known = times.find(selection) if keeping else None
        if known is not None:
            return {choice: known[digest] for choice, digest in zip(choices, selection.candidates, strict=True)}
        if benchmark is None:
            return {}
        with times.alone(selection):
            found = benchmark(choices)
        if keeping:
            times.keep(selection, {choice.hash_key(): float(taken) for choice, taken in found.items()})
        return found

    with patched(cache, "lookup", lookup):
        yield


def _is_on_cpu(choice: Any) -> bool:
    device = getattr(getattr(choice, "layout", None), "device", None)
    return device is not None and device.type == "cpu"
