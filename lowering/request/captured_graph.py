"""Holds a graph's request while its compile is tried, and the state of this process that loading its result needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fxpool import notices
from fxpool.codecache.key import cacheable, key
from fxpool.codecache.key.key import GraphKey
from fxpool.codecache.store.entry import Origin
from fxpool.errors import CannotTravelError
from fxpool.lowering.request import overlapping_inputs
from fxpool.lowering.request.compile_request import AOT, CompileRequest, Measured
from fxpool.lowering.request.device_placement import Placement
from fxpool.torch_compat.dynamo import frames, shape_env, tracing
from fxpool.torch_compat.dynamo.shape_env import ShapeEnv
from fxpool.torch_compat.dynamo.tracing import TracingContext

__all__ = ["Captured"]

log = notices.logger(__name__)


@dataclasses.dataclass(kw_only=True)
class Captured:
    """A request, and the state of this process that is needed to load its result.

    The request is immutable: new information (its described key, entries that do not fit, answers to queries of
    lowering) replaces it by another request, for the next try.

    `stays` is the reason why a worker cannot have the program's code: the graph is compiled here, and cached if it has
    a key. `bypass` is the reason for having no key. `describe` returns a key with its components explained;
    `make_host_key` returns the key for hosts like this one, if that differs.
    `lifted` are the parameters and buffers that the graph carries as attributes; they come first among the inputs of
    the compiled callable. `frame` is the function that Dynamo traced it from. `groups` are the process groups that it
    names. `system` is the component of that name of the key for hosts like this one. `saved_by_torch`: torch puts the
    result into its own artifacts, so its entry is not among those of ``torch.compiler.save_cache_artifacts()``.
    """

    request: CompileRequest
    context: TracingContext | None
    env: ShapeEnv | None
    fakes: Sequence[Any]
    lifted: Sequence[torch.Tensor]
    sources: Sequence[Any]
    layout: overlapping_inputs.Layout
    placement: Placement
    stays: CannotTravelError | None = None
    bypass: cacheable.Bypass | None = None
    describe: Callable[[GraphKey], GraphKey] | None = None
    make_host_key: Callable[[], GraphKey] | None = None
    describe_with_host: Callable[[GraphKey], GraphKey] | None = None
    frame: frames.Frame | None = None
    groups: tuple[str, ...] = ()
    system: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    saved_by_torch: bool = False

    @property
    def key(self) -> key.GraphKey | None:
        return self.request.key

    def all_keys(self) -> Iterator[GraphKey]:
        """Yield the keys of this graph's entries: the key for any host, and the key for hosts like this one."""
        if self.request.key is None:
            return
        yield self.request.key
        self._make_host_key()
        if self.request.host_key is not None:
            yield self.request.host_key

    def _make_host_key(self) -> None:
        if self.make_host_key is not None:
            self._again(host_key=self.make_host_key())
            self.make_host_key = None

    def _again(self, **changes: Any) -> None:
        self.request = dataclasses.replace(self.request, **changes)

    def complete(self, *, keep_request: bool = False) -> None:
        """Fill in the data that only a compile needs: an entry explains its key, and describes its graph."""
        self.explain_key()
        aot_id = tracing.next_aot_id() if self.request.level == AOT else 0
        self._again(values=self.values(), aot_id=aot_id, keep_request=keep_request)

    def explain_key(self) -> None:
        """Fill in the description of the key's components that entries store for people. Idempotent."""
        if self.describe is not None and self.request.key is not None:
            self._again(key=self.describe(self.request.key))
            self.describe = None
        self._make_host_key()
        if self.describe_with_host is not None and self.request.host_key is not None:
            self._again(host_key=self.describe_with_host(self.request.host_key))
            self.describe_with_host = None
        self._again(origin=self.request.origin or self._origin())

    def reject(self, entry: str) -> None:
        """Exclude an entry from the next try: it does not fit this call, or cannot be loaded."""
        self._again(rejected_entries=(*self.request.rejected_entries, entry))

    def answer(self, measured: Measured) -> None:
        """Add answers to lowering's queries for measurements on a device."""
        self._again(measured=(*self.request.measured, *measured))

    def read_program(self, path: str) -> None:
        """Set the path of the exported program."""
        self._again(program=path)

    def show_devices(self) -> None:
        """Let the next worker see the graph's devices instead of answering for them."""
        self._again(devices=(), visible=self.placement.visible())

    def _origin(self) -> Origin | None:
        """Describe the graph for people. Never raises: it is only diagnostic."""
        try:
            inputs, parameters = frames.shown_inputs(self.fakes[len(self.lifted) :], self.sources[len(self.lifted) :])
            arguments = self.request.arguments
            part = "" if self.request.level == AOT else "backward" if arguments.get("is_backward") else "forward"
            frame = self.frame._asdict() if self.frame is not None else {}
            return Origin(**frame, part=part, inputs=inputs, parameters=parameters + len(self.lifted))
        except Exception:
            log.debug("%s: could not name its origin", self.request.label, exc_info=True)
            return None

    def values(self) -> dict[str, Any]:
        """Return this call's value of every symbol."""
        return {**(shape_env.values(self.env) if self.env is not None else {}), **self.request.hints}

    def for_sizes(self, values: Mapping[str, Any]) -> Captured:
        """Return a copy for a later call in which symbols have other values. Its key and request are complete."""
        other = dataclasses.replace(self, request=dataclasses.replace(self.request, hints=values, rejected_entries=()))
        other._again(values=other.values())
        return other
