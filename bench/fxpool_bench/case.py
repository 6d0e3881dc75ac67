"""What a suite is made of: cases, and the runs that they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fxpool.errors import ConfigurationError

__all__ = ["MODES", "Case", "Run", "runs"]

#: What is done with a model: `dynamic` is inference that is compiled for any size.
MODES = ("inference", "training", "dynamic")
_BACKENDS = ("eager", "inductor", "fxpool")


@dataclass(frozen=True)
class Case:
    """One model and its inputs.

    `make` returns ``(callable, arguments)``: it is a function, or the text ``"module:function"``, and is called with
    `arguments` in the process that measures; what it makes is moved to `device`. `modes` are of `MODES`; `backends` are
    names that torch.compile knows, or ``"eager"``: not compiled. `options` by backend: keyword arguments of
    torch.compile. `seconds` and `precision` as in `fxpool.measure`. The outputs (in training: of gradients, too) may be
    off eager's by `tolerance`, as a part of the largest value, so it has to be a model without random numbers
    (dropout 0). A run may take `timeout` seconds and `memory` bytes; None: half of the host's.
    """

    name: str
    make: Callable[..., tuple[Callable[..., Any], tuple[Any, ...]]] | str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = ("inference",)
    backends: tuple[str, ...] = _BACKENDS
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
                remedy=f"modes are {', '.join(MODES)}; at least one of each is needed",
            )
        if not self.name or "/" in self.name or self.name != self.name.strip():
            raise ConfigurationError(f"{self.name!r} is no name of a case", remedy="it may hold anything but a slash")
        if min(self.seconds, self.precision, self.tolerance, self.timeout) <= 0:
            raise ConfigurationError(f"case {self.name!r}: seconds, precision, tolerance and timeout are above 0")


@dataclass(frozen=True)
class Run:
    """One process: a case in one mode with one backend, for the `repetition`-th time."""

    case: str
    mode: str
    backend: str
    repetition: int = 1

    @property
    def id(self) -> str:
        """``gpt2/training/fxpool``, from the second repetition on with its number."""
        again = f"#{self.repetition}" if self.repetition > 1 else ""
        return f"{self.case}/{self.mode}/{self.backend}{again}"


def runs(
    cases: Iterable[Case], *, modes: Iterable[str] = (), backends: Iterable[str] = (), repetitions: int = 1
) -> Iterator[Run]:
    """Yield the runs of `cases`, narrowed to some modes and backends; a whole round before the next repetition.

    A backend that a case does not name is run with it, too, if it is asked for.
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
