"""Process groups by name, in graphs of functional collectives.

A graph refers to a group by a name that is valid in this process only: ranks that do the same computation in their own
groups have other names. Only a group's size matters to a compile. So groups are numbered in the encoded graph, a worker
gets placeholder groups of the same sizes, and the names are inserted when the code is loaded.

A worker also knows whether its client has a default group, which is in the key. Ranks, the default group's size and
symmetric memory are in neither: a compile that asks for one of them is left to the client.

One rank may be served a graph that another rank compiles for minutes. The first rank then waits in a collective, and
NCCL would time out. As after a hit of Inductor's own cache, all groups of this process get a longer timeout for their
next collective (`extend_timeouts`). Only NCCL's backend supports this.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch._dynamo.utils import get_metrics_context

from fxpool.errors import CannotTravelError
from fxpool.torch_compat.patching import patched

__all__ = ["extend_timeouts", "initialized", "name_in_code", "number_in_code", "position", "shown", "size"]

_NAMESPACES = frozenset(("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem"))
_PREFIX = "fxpool:process group "


def position(target: Any) -> int | None:
    """Return the position of the argument that names a process group; None for an operator without such an argument."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        if target._qualified_op_name.partition("::")[0] not in _NAMESPACES:
            return None
        target = getattr(target, target.overloads()[0])
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _NAMESPACES:
        return None
    names = [argument.name for argument in target._schema.arguments]
    return names.index("group_name") if "group_name" in names else None


def size(name: str) -> int:
    """Return the number of ranks of a group of this process. Raises LookupError: there is no group of that name."""
    from torch.distributed import distributed_c10d

    try:
        return int(distributed_c10d._resolve_process_group(name).size())
    except (RuntimeError, ValueError) as error:
        raise LookupError(name) from error


def name_in_code(number: int) -> str:
    """Return a worker's name for a graph's group."""
    return f"{_PREFIX}{number}"


def number_in_code(name: str) -> int | None:
    """Return the number of the group that a text in a worker's code names; None for any other text."""
    number = name.removeprefix(_PREFIX)
    return int(number) if number != name and number.isdigit() else None


def initialized() -> bool:
    """Return whether this process has a default group."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@contextlib.contextmanager
def shown(sizes: Sequence[int], *, default: bool) -> Iterator[None]:
    """Provide placeholder groups of these sizes, by their names in code, and (with `default`) a default group.

    They cannot communicate.

    Raises:
        CannotTravelError: the compile asked for a rank or another fact that only the client has.
    """
    if not sizes and not default:
        yield
        return
    from torch._C import _distributed_c10d as c10d
    from torch._dynamo.repro import after_aot
    from torch._logging import _internal
    from torch.distributed import _symmetric_memory, distributed_c10d

    asked: list[str] = []

    def unknown(fact: str) -> Callable[..., NoReturn]:
        def ask(*_: object) -> NoReturn:
            asked.append(fact)
            raise RuntimeError(f"the compile of a graph asked for {fact}")

        return ask

    group: Any = c10d.ProcessGroup  # without a store, which torch's stubs do not know
    named = type("Group", (group,), {"rank": unknown("the rank")})
    whole = type("DefaultGroup", (named,), {"size": unknown("the number of ranks")})
    extract = after_aot._extract_distributed_info

    def shown_as_first(gm: torch.fx.GraphModule) -> Any:
        with patched(named, "rank", lambda group: 0):
            return extract(gm)

    known: dict[str, Any] = {}  # keeps them alive, which the table does not
    with contextlib.ExitStack() as stack:
        # All three are looked up where they are called. The second is for programs that repeat a compile.
        enabled = unknown("symmetric memory")
        stack.enter_context(patched(_symmetric_memory, "is_symm_mem_enabled_for_group", enabled))
        stack.enter_context(patched(after_aot, "_extract_distributed_info", shown_as_first))
        if default and not initialized():
            # Records of a log name the rank: here, as in any worker, they name none.
            stack.enter_context(patched(_internal, "dist", types.SimpleNamespace(is_available=bool)))
            distributed_c10d._world.default_pg = whole(0, 1)
            stack.callback(setattr, distributed_c10d._world, "default_pg", None)
        for number, ranks in enumerate(sizes):
            name = name_in_code(number)
            known[name] = made = named(0, ranks)
            c10d._register_process_group(name, made)
            stack.callback(c10d._unregister_process_group, name)
        try:
            yield
        except Exception as error:
            if asked:
                raise CannotTravelError("differs_between_ranks", asked[0]) from error
            raise
    if asked:
        raise CannotTravelError("differs_between_ranks", asked[0])


def extend_timeouts(seconds: float) -> int:
    """Extend timeouts of collectives by whole seconds; return by how many, 0 if the program is not distributed."""
    context = get_metrics_context()
    if context.in_progress():  # not in a thread that compiles in the background
        context.increment("distributed_ephemeral_timeout_us", int(seconds * 1e6))
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    distributed.distributed_c10d._add_ephemeral_timeout_for_all_pgs(datetime.timedelta(seconds=int(seconds)))
    return int(seconds)
