"""The cases of a suite, and the runs of a case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fxpool.errors import ConfigurationError

__all__ = ["BACKENDS", "MODES", "Case", "Run", "runs"]

#: `dynamic` is inference, compiled for all sizes.
MODES = ("inference", "training", "dynamic")
#: The backends of a case that names none.
BACKENDS = ("eager", "inductor", "fxpool")


@dataclass(frozen=True)
class Case:
    """A model and its inputs.

    `make` is a function, or its name as ``"module:function"``. It is called with `arguments` in the process that
    measures, and returns ``(callable, arguments)``, which are moved to `device`. `modes` are some of `MODES`;
    `backends` are backends of torch.compile, or ``"eager"`` (not compiled). `options` maps backends to keyword
    arguments of torch.compile. `seconds` and `precision` are those of `fxpool.measure`. Outputs (in training also
    gradients) may differ from eager's by `tolerance`, relative to the largest value, so the model must not use random
    numbers (dropout 0). A run may take `timeout` seconds and `memory` bytes (None: half of the host's memory).
    """

    name: str
    make: Callable[..., tuple[Callable[..., Any], tuple[Any, ...]]] | str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = ("inference",)
    backends: tuple[str, ...] = BACKENDS
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    device: str = "cpu"
    seconds: float = 5.0
    precision: float = 0.01
    tolerance: float = 1e-2
    timeout: float = 900.0
    memory: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "modes", tuple(self.modes))
        object.__setattr__(self, "backends", tuple(self.backends))
        unknown = [mode for mode in self.modes if mode not in MODES]
        if unknown or not self.modes or not self.backends:
            raise ConfigurationError(
                f"case {self.name!r} has modes {list(self.modes)} and backends {list(self.backends)}",
                remedy=f"choose at least one of each; modes are {', '.join(MODES)}",
            )
        if not self.name or "/" in self.name or self.name != self.name.strip():
            raise ConfigurationError(
                f"{self.name!r} is not a valid name of a case", remedy="use a name without a slash"
            )
        if min(self.seconds, self.precision, self.tolerance, self.timeout) <= 0:
            raise ConfigurationError(f"case {self.name!r}: seconds, precision, tolerance and timeout must be above 0")


@dataclass(frozen=True)
class Run:
    """One process: a case in a mode with a backend, for the `repetition`-th time."""

    case: str
    mode: str
    backend: str
    repetition: int = 1

    @property
    def id(self) -> str:
        """``gpt2/training/fxpool``; from the second repetition on, the number is appended (``#2``)."""
        again = f"#{self.repetition}" if self.repetition > 1 else ""
        return f"{self.case}/{self.mode}/{self.backend}{again}"


def runs(
    cases: Iterable[Case], *, modes: Iterable[str] = (), backends: Iterable[str] = (), repetitions: int = 1
) -> Iterator[Run]:
    """Yield the runs of `cases`, limited to `modes` and `backends` if given. All runs come before the next repetition.

    `backends` may contain backends that a case does not name.
    """
    cases = list(cases)
    only_modes, only_backends = tuple(modes), tuple(backends)
    for repetition in range(1, repetitions + 1):
        for case in cases:
            for mode in case.modes:
                if only_modes and mode not in only_modes:
                    continue
                for backend in only_backends or case.backends:
                    yield Run(case.name, mode, backend, repetition)
