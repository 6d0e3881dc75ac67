"""The contents of an entry besides blobs and guards: effects of the compile, and decisions made during it."""

from __future__ import annotations

from typing import Any

import msgspec

from fxpool.codecache.store.entry import Entry
from fxpool.errors import CorruptEntryError

__all__ = ["Choices", "Content", "Decisions", "Effects", "content_of"]

#: By kind of device: the number of each Triton kernel's fastest candidate, by the kernel's name.
Choices = dict[str, dict[str, int]]


class Effects(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Side effects of a compile, to be replayed when its code is loaded.

    `restart` names inputs: a pass asked Dynamo to trace again with those specialized, and there is no code.
    `aot_guards` are AOTAutograd's (see `torch_compat.dynamo.tracing.describe_aot_guards`), `mutated_inputs` the
    positions of inputs that the code writes to. Shape guards are in the entry's `guards` field.
    """

    restart: list[str] = []
    aot_guards: list[Any] = []
    mutated_inputs: list[int] = []


class Decisions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Decisions made by timing, for people to read: paddings that were `measured`, templates that were `tuned`."""

    measured: list[Any] = []
    tuned: list[Any] = []

    def described(self) -> dict[str, str]:
        """Describe the decisions in words."""
        rows: list[tuple[str, str]] = []
        for question, pays in self.measured:
            product, *operands = question
            sizes = " ".join("x".join(map(str, operand[0])) for operand in operands if operand)
            rows.append((f"padding {product} {sizes}", "pays" if pays else "does not pay"))
        for asked, *answer in self.tuned:
            if len(answer) < 3:
                rows.append((asked, "not timed"))
            else:
                count, best, milliseconds = answer
                took = f"{milliseconds:.4f} ms" if milliseconds is not None else "no candidate runs"
                rows.append((asked, f"{took}, {best}, of {count}" if best else took))
        return {f"decided {number}, {asked}": answer for number, (asked, answer) in enumerate(rows, 1)}


class Content(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`level` is the graph's (see `fallback.chain`), `choices` are the fastest candidates of Triton kernels so far.

    `graphs` are digests of the graphs that AOTAutograd made (see `worker.reused_graphs`).
    """

    level: str
    effects: Effects = Effects()
    decisions: Decisions = Decisions()
    choices: Choices = {}
    graphs: list[str] = []


def content_of(entry: Entry) -> Content:
    """Return an entry's content. Raises CorruptEntryError if it does not have the expected form."""
    try:
        return msgspec.convert(entry.content, Content)
    except msgspec.ValidationError as error:
        raise CorruptEntryError(f"the content of entry {entry.key[:12]} is invalid: {error}") from error
