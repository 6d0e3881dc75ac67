"""The Triton kernels of a graph in the process that calls them: loaded, measured and launched without Triton.

A kernel's binary is loaded at its first call. If it has several candidates, they are measured then, on the inputs of
that call, as Inductor does. The choice is stored with the entry, so that no other process with such a device measures
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fxpool import counters, forks, notices
from fxpool.lowering.cuda.triton_kernels import Candidate, Kernel, attribute
from fxpool.torch_compat.triton import triton_compile, triton_launch

log = notices.logger(__name__)

#: By kind of device: numbers of the chosen candidates, by the kernel's name in its library.
Choices = dict[str, dict[str, int]]


class TritonLibrary:
    """The kernels of one entry, as attributes ``t0``, ``t1`` and so on.

    `texts` are the generated modules that call them: a kernel without a binary that the driver accepts is recompiled
    from these.
    """

    def __init__(self, kernels: Sequence[Kernel], choices: Choices, keep: Callable[[Choices], None]) -> None:
        self.texts: list[str] = []
        self._choices = {kind: dict(chosen) for kind, chosen in choices.items()}
        self._keep = keep
        self._lock = forks.lock(self, "_lock")
        #: Whether a choice was made that is not stored yet.
        self.changed = False
        for number, kernel in enumerate(kernels):
            setattr(self, attribute(number), LaunchedKernel(self, attribute(number), kernel))

    def choice(self, name: str) -> int | None:
        """Return the candidate that was chosen on a device of this kind, or None."""
        with self._lock:
            return self._choices.get(triton_launch.device_name(), {}).get(name)

    def choose(self, name: str, number: int) -> None:
        with self._lock:
            self._choices.setdefault(triton_launch.device_name(), {})[name] = number
            self.changed = True

    def keep_choices(self) -> None:
        """Store the choices made since the last time; called after a call of the graph."""
        with self._lock:
            if not self.changed:
                return
            self.changed = False
            choices = {kind: dict(chosen) for kind, chosen in self._choices.items()}
        self._keep(choices)

    def source_of(self, name: str) -> str | None:
        """Return the text of a kernel."""
        sources = (triton_compile.source_of(text, name) for text in self.texts)
        return next((source for source in sources if source is not None), None)


class LaunchedKernel:
    """A kernel as wrappers call it. At its first call, `run` replaces itself by the chosen candidate's `run`."""

    def __init__(self, library: TritonLibrary, attribute: str, kernel: Kernel) -> None:
        self._library, self._attribute, self._kernel = library, attribute, kernel
        self._lock = forks.lock(self, "_lock")

    def run(self, *args: Any, stream: int, **kwargs: Any) -> Any:
        """Launch on `stream`. Raises RuntimeError if no binary can be loaded and the kernel cannot be compiled here."""
        with self._lock:
            if "run" not in self.__dict__:
                self.run = self._chosen(args)  # type: ignore[method-assign]
        return self.run(*args, stream=stream, **kwargs)

    def _chosen(self, args: Sequence[Any]) -> Callable[..., Any]:
        kernel = self._kernel
        number = self._library.choice(self._attribute) if len(kernel.candidates) > 1 else 0
        loaded: dict[int, _LoadedCandidate] = {}
        if number is not None and number < len(kernel.candidates):
            loaded = self._load([number])
        if not loaded:
            loaded = self._load(range(len(kernel.candidates)))
        if not loaded:
            return self._compiled_here()
        if len(loaded) > 1:
            best = self._fastest(loaded, args)
            self._library.choose(self._attribute, best)
            for other, candidate in loaded.items():
                if other != best:
                    candidate.unload()
        else:
            (best,) = loaded
        return loaded[best].run

    def _load(self, numbers: Sequence[int]) -> dict[int, _LoadedCandidate]:
        device = triton_launch.current_device()
        loaded = {}
        for number in numbers:
            candidate = self._kernel.candidates[number]
            try:
                loaded[number] = _LoadedCandidate(candidate, self._kernel.parameters, device)
            except RuntimeError as error:
                log.info("cannot load candidate %s of %s: %s", candidate.report, self._kernel.name, error)
        return loaded

    def _compiled_here(self) -> Callable[..., Any]:
        source = self._library.source_of(self._kernel.name)
        if source is None:
            raise RuntimeError(
                f"none of the {len(self._kernel.candidates)} binaries of Triton kernel {self._kernel.name} can "
                "be loaded on this device, and its source is not stored; clear the cache"
            )
        counters.count("fallbacks", "loader:triton_binary")
        return triton_launch.compile_here(self._kernel.name, source).run

    def _fastest(self, loaded: dict[int, _LoadedCandidate], args: Sequence[Any]) -> int:
        with triton_launch.tuning_told(self._kernel.name):
            times = {number: self._milliseconds(candidate, args) for number, candidate in loaded.items()}
        self._clear(args)
        log.debug("candidates of %s take %s ms", self._kernel.name, times)
        return min(times, key=times.__getitem__)

    def _milliseconds(self, candidate: _LoadedCandidate, args: Sequence[Any]) -> float:
        kernel = self._kernel
        if kernel.spill_limit is not None and (candidate.spills or 0) > kernel.spill_limit:
            return float("inf")
        stream = triton_launch.current_stream()
        named = list(zip(kernel.parameters, args, strict=False))
        written = [value for name, value in named if name in kernel.written]
        aside = triton_launch.set_aside(written) if kernel.optimize_memory else []
        kept = {id(tensor) for tensor, _ in aside}

        def call() -> None:
            copied = [
                triton_launch.clone(value) if name in kernel.written and id(value) not in kept else value
                for name, value in named
            ]
            self._clear(args)
            candidate.launch(*copied, stream)
            triton_launch.put_back(aside)

        return triton_launch.milliseconds(call)

    def _clear(self, args: Sequence[Any]) -> None:
        if self._kernel.zeroed:
            for name, value in zip(self._kernel.parameters, args, strict=False):
                if name in self._kernel.zeroed:
                    value.zero_()


class _LoadedCandidate:
    def __init__(self, candidate: Candidate, parameters: list[str], device: int) -> None:
        self._loaded = triton_launch.Loaded(candidate.binary, candidate.symbol, candidate.shared, device)
        self.spills = self._loaded.spills
        space: dict[str, Any] = {
            "_launch": triton_launch.launcher(),
            "_function": self._loaded.function,
            "_profiler": triton_launch.profiler,
            "_debug_mode": triton_launch.debug_mode,
            "_observed": triton_launch.observed,
            "_names": parameters,
            "_told": candidate.report,
        }
        exec(compile(candidate.code, f"<launch of {candidate.symbol}>", "exec"), space)
        self.launch: Callable[..., None] = space["launch"]
        self.run: Callable[..., None] = space["run"]

    def unload(self) -> None:
        self._loaded.unload()
