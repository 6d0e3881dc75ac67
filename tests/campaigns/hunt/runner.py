"""Has the processes of a case run, and judges what came out of them.

Truth after a change is what eager execution gives, and stock Inductor where eager says nothing of it or where fxpool
differs from eager (Inductor may). Stock runs with its graph caches off; of its kernels it keeps those named by their
own text.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from harness.children import ChildError, Children
from harness.loader import Loader
from harness.places import environment_of, learn_toolchain, link_toolchain, stop_servers, with_tests

from .program import Case, Step, write_files

__all__ = ["AHEAD", "Hunter", "Outcome", "StepOutcome"]

LIMIT = 240.0  # seconds for one process of a case
_CACHES_OFF = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
#: Modules that processes of either role import before they fork, because no program can tell.
AHEAD = {
    "fxpool": "fxpool.lowering.fallback.chain fxpool.lowering.artifact.load fxpool.lowering.artifact.side_effects "
    "fxpool.lowering.core.runtime fxpool.pool.client fxpool.codecache.key.toolchain",
    "stock": "torch._inductor.compile_fx torch._inductor.select_algorithm torch._inductor.codegen.cpp",
}
# Processes that have used Inductor before: half of the cases. A compile at home takes 3 s there instead of 12.
AHEAD["used"] = f"{AHEAD['fxpool']} {AHEAD['stock']}"


@dataclasses.dataclass
class StepOutcome:
    """The outcome of one process: `verdict` is ``right``, ``wrong`` or ``refused`` (a setting of the hunt's fails)."""

    name: str
    verdict: str = "right"
    against: str = "eager"
    detail: str = ""
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    reasons: dict[str, int] = dataclasses.field(default_factory=dict)
    errors: list[str] = dataclasses.field(default_factory=list)
    wants_hit: bool = False
    lost_hit: bool = False
    seconds: float = 0.0


@dataclasses.dataclass
class Outcome:
    """The outcome of a case. `telling`: what is right differs between its processes, so a stale result would show."""

    kind: str
    number: int
    note: dict[str, Any]
    steps: list[StepOutcome]
    telling: bool
    seconds: float

    @property
    def verdict(self) -> str:
        verdicts = {step.verdict for step in self.steps}
        return "wrong" if "wrong" in verdicts else "broken" if "broken" in verdicts else "right"


class Hunter:
    """Runs cases under one directory, on one pool of workers, with `slots` cases at a time.

    `backend` other than ``fxpool`` puts another backend in its place: with ``inductor`` the expectations are tried.
    `environment` is what every process of the programs gets besides.
    """

    def __init__(
        self,
        root: Path,
        *,
        slots: int = 2,
        backend: str = "fxpool",
        stock_every: int = 10,
        environment: Mapping[str, str] | None = None,
        prelude: str = "",
        keep: bool = False,
    ) -> None:
        self.root, self.slots, self.backend, self.stock_every, self.keep = root, slots, backend, stock_every, keep
        self._extra = dict(environment or {})
        self._prelude = prelude
        self._stock: dict[str, list[Any]] = {}
        self._local = threading.local()
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._children = Children()
        for name in ("i", "cases"):
            (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def __enter__(self) -> Hunter:
        self._prepare()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
        stop_servers(self.root)

    # ------------------------------------------------------------ processes

    def _environment(self, case_directory: Path, step: Step | None, *, own_kernels: bool = False) -> dict[str, str]:
        inductor = case_directory / f"i-{step.name.replace(' ', '-')}" if own_kernels and step else self.root / "i"
        kept = {
            name: value
            for name, value in environment_of(self.root, case_directory).items()
            if not name.startswith(("TORCH_", "PYTHON", "HUNT_")) or name == "PYTHONPYCACHEPREFIX"
        }
        return {
            **kept,
            "FXPOOL_IDLE_TIMEOUT": "20",
            "TORCHINDUCTOR_CACHE_DIR": str(inductor),
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self._extra,
            **(step.environment if step is not None else {}),
        }

    def _loader(self, role: str) -> Loader:
        """This thread's forks for `role`, a key of `AHEAD`."""
        found = getattr(self._local, role, None)
        if found is None:
            environment = self._environment(self.root / "loader", None)
            environment["PYTHONPATH"] = with_tests(None)
            environment["HUNT_AHEAD"] = AHEAD[role]
            if role == "stock":  # read when torch is imported
                environment |= _CACHES_OFF
            with self._lock:
                found = self._stack.enter_context(Loader("campaigns.hunt.phases", environment))
            setattr(self._local, role, found)
        return found

    def _forked(
        self, role: str, request: Mapping[str, Any], environment: Mapping[str, str], what: str
    ) -> dict[str, Any]:
        """The report of a fork. A loader that has ended or hangs tells nothing of the case: another takes its place."""
        for _ in range(2):
            try:
                return self._loader(role).run([json.dumps(request)], environment, what, LIMIT)
            except TimeoutError:
                setattr(self._local, role, None)
            except ChildError as error:
                if "could not be started" not in str(error):
                    raise
                setattr(self._local, role, None)
        raise ChildError(what, "could not be forked", "two loaders have failed")

    def _prepare(self) -> None:
        first = self.root / "first"
        self._toolchain = first / "fxpool" / "toolchain"
        if self.backend == "fxpool" and not self._toolchain.is_dir():
            environment = self._environment(first, None)
            self._toolchain = learn_toolchain(self._children, environment)

    def _process(
        self, case: Case, step: Step, directory: Path, backend: str
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """(result of each call, report) of one process. Raises ChildError if it died."""
        program = directory / "program"
        write_files(program, step.files)
        ours = backend in ("fxpool", "none")
        # Inductor's caches, which would know of the step before: stock's are off, and what fxpool has compiled here
        # has a directory for each step, as these switches are fxpool's as well.
        own = ours or not case.shared_stock
        request = case.request(step, program, backend)
        request["save"] = str(directory / f"result-{backend}.pt")
        if backend == "fxpool" and self._prelude:
            request["calls"] = [self._prelude + "\n" + request["calls"][0], *request["calls"][1:]]
        environment = {
            name: text.replace("{directory}", str(program))
            for name, text in self._environment(directory, step, own_kernels=own).items()
        }
        if not ours:
            environment = {**_CACHES_OFF, **environment}
        what = f"{case.kind} {case.number} {step.name} ({backend})"
        if case.fresh:
            environment["PYTHONPATH"] = with_tests(
                environment["PYTHONPATH"] if "PYTHONPATH" in step.environment else None
            )
            arguments = ["-m", "campaigns.hunt.phases", json.dumps(request)]
            report = self._children.result(arguments, environment, what, LIMIT)
        else:
            used = backend == "fxpool" and (case.number + zlib.crc32(case.kind.encode())) % 2
            role = "used" if used else "fxpool" if ours else "stock"
            report = self._forked(role, request, environment, what)
        results = torch.load(request["save"], weights_only=False)
        return results, report

    def _stock_results(self, case: Case, step: Step, directory: Path) -> list[dict[str, Any]]:
        name = case.state_digest(step)
        if name not in self._stock:
            self._stock[name] = self._process(case, step, directory, "inductor")[0]
        return self._stock[name]

    # ------------------------------------------------------------ cases

    def run_all(self, cases: Sequence[Case]) -> Iterator[Outcome]:
        """Outcomes as they come, `slots` cases at a time."""
        return self._children.each(self.run, cases, self.slots)

    def run(self, case: Case) -> Outcome:
        """Run a case's processes in order, each judged on its own."""
        begun = time.perf_counter()
        directory = Path(tempfile.mkdtemp(prefix=f"{case.kind}-{case.number}-", dir=self.root / "cases"))
        link_toolchain(directory / "fxpool", self._toolchain)
        steps: list[StepOutcome] = []
        expectations: list[list[dict[str, Any]]] = []
        for step in case.steps:
            outcome = StepOutcome(step.name, wants_hit=step.expect_hit)
            steps.append(outcome)
            started = time.perf_counter()
            try:
                expectations.append(self._judge(case, step, directory, outcome))
            except ChildError as error:
                outcome.verdict, outcome.detail = "broken", f"{error}: {error.output[-1500:]}"
            except subprocess.CalledProcessError as error:  # a library of the program cannot be compiled
                outcome.verdict, outcome.detail = "broken", str(error)
            outcome.seconds = time.perf_counter() - started
        found = Outcome(case.kind, case.number, case.note, steps, _telling(expectations), time.perf_counter() - begun)
        if found.verdict == "right" and not self.keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            found.note = {**found.note, "directory": str(directory)}
        return found

    def _judge(self, case: Case, step: Step, directory: Path, outcome: StepOutcome) -> list[dict[str, Any]]:
        """Fill in `outcome`; returns what is right."""
        expected: list[dict[str, Any]] = []
        if not case.stock:
            expected, _ = self._process(case, step, directory, "none")
        else:
            expected, outcome.against = self._stock_results(case, step, directory), "stock"
        try:
            actual, report = self._process(case, step, directory, self.backend)
        except ChildError as error:
            # The process of fxpool's died. Where stock's dies as well, that is the program's.
            self._stock_results(case, step, directory)
            outcome.verdict, outcome.detail = "wrong", f"{error}: {error.output[-1500:]}"
            return expected
        _counted(outcome, report.get("stats"))
        outcome.errors = report["errors"]
        outcome.lost_hit = step.expect_hit and self.backend == "fxpool" and _compiled(outcome) > 0
        difference = _difference(actual, expected, case.tolerance)
        # Of each kind another case in every so many.
        sampled = (case.number + zlib.crc32(case.kind.encode())) % self.stock_every == 0
        if outcome.against == "eager" and (difference or sampled):
            eager, of_eager = expected, difference
            expected, outcome.against = self._stock_results(case, step, directory), "stock"
            difference = _difference(actual, expected, case.tolerance)
            if not of_eager and any("error" in result for result in expected):  # stock refuses what eager runs
                expected, outcome.against, difference = eager, "eager", ""
            elif difference and case.mode and case.mode.startswith("async"):
                # Calls before the code is there are eager's, those after it may differ from eager as stock's do.
                difference = _difference_from_all(actual, [eager, expected], case.tolerance)
        if difference and outcome.against == "stock" and _raises_as(actual, expected):
            outcome.verdict, outcome.detail = "refused", difference
        elif difference:
            outcome.verdict, outcome.detail = "wrong", difference
        elif any("error" in result for result in expected):
            # Stock refuses the program as well. That tells of the kind, not of fxpool.
            outcome.verdict = "refused"
            outcome.detail = next(result["error"] for result in expected if "error" in result)
        return expected


def _counted(outcome: StepOutcome, stats: Mapping[str, Any] | None) -> None:
    if stats is None:
        outcome.counts = {"hits": 0, "misses": 0, "worker": 0, "in_process": 0}
        return
    outcome.counts = {name: stats[name] for name in ("hits", "misses", "guard_misses", "joined", "quarantined")}
    outcome.counts.update(stats["compiles"])
    outcome.counts["eager_calls"] = sum(stats["eager_calls"].values())
    for table in ("bypasses", "fallbacks"):
        for reason, count in stats[table].items():
            outcome.reasons[f"{table}:{reason}"] = count


def _compiled(outcome: StepOutcome) -> int:
    return outcome.counts.get("worker", 0) + outcome.counts.get("in_process", 0)


def _telling(expectations: list[list[dict[str, Any]]]) -> bool:
    """Whether some two results that are right differ: of two processes, or of two calls of one."""
    flat = [result for results in expectations for result in results]
    return any(_difference([one], [flat[0]], 1.0) for one in flat[1:])


def _difference(actual: list[dict[str, Any]], expected: list[dict[str, Any]], tolerance: float) -> str:
    """Return the difference in words; "" without one."""
    if len(actual) != len(expected):
        return f"{len(actual)} calls, not {len(expected)}"
    for call, (ours, right) in enumerate(zip(actual, expected, strict=True)):
        if "error" in ours or "error" in right:
            if ("error" in ours) != ("error" in right):
                return f"call {call}: {ours.get('error', 'no error')}; right: {right.get('error', 'no error')}"
            continue
        for part in ours:
            for difference in _differences(ours[part], right[part], tolerance):
                return f"call {call}, {part}: {difference}"
    return ""


def _difference_from_all(
    actual: list[dict[str, Any]], expectations: Sequence[list[dict[str, Any]]], tolerance: float
) -> str:
    """The first call that is like none of those that are right; empty without one."""
    for call, ours in enumerate(actual):
        found = [_difference([ours], expected[call : call + 1], tolerance) for expected in expectations]
        if all(found):
            return f"of call {call}: {found[-1]}"
    return ""


def _raises_as(actual: Sequence[dict[str, Any]], stock: Sequence[dict[str, Any]]) -> bool:
    """Whether every call of `actual` that is not like stock's raises what stock raises in some call.

    Code that Dynamo can't trace fails with any backend; which calls reach it depends on earlier traces.
    """
    raised = {_head(result["error"]) for result in stock if "error" in result}
    return (
        bool(raised)
        and all(
            _head(ours.get("error", "")) in raised or ("error" in right and "error" not in ours)
            for ours, right in zip(actual, stock, strict=True)
            if ("error" in ours) != ("error" in right)
        )
        and all(
            not _difference([ours], [right], 1.0)
            for ours, right in zip(actual, stock, strict=True)
            if "error" not in ours and "error" not in right
        )
    )


def _head(error: str) -> str:
    return error.partition("\n")[0]


def _differences(ours: Any, right: Any, tolerance: float) -> Iterator[str]:
    if isinstance(ours, list) and isinstance(right, list):
        if len(ours) != len(right):
            yield f"{len(ours)} values, not {len(right)}"
        for one, other in zip(ours, right, strict=False):
            yield from _differences(one, other, tolerance)
    elif isinstance(ours, dict) and isinstance(right, dict):
        one, other = ours["tensor"], right["tensor"]
        if ours["requires_grad"] != right["requires_grad"]:
            yield f"requires_grad {ours['requires_grad']}, not {right['requires_grad']}"
        small = {torch.bfloat16: (2e-2, 1e-2), torch.float16: (3e-3, 1e-3)}.get(one.dtype, (2e-5, 1e-5))
        if one.dtype == torch.float64:
            small = (1e-7, 1e-7)
        try:
            torch.testing.assert_close(
                one, other, rtol=small[0] * tolerance, atol=small[1] * tolerance, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            yield f"{_shown(one)}, not {_shown(other)} ({str(error).splitlines()[0]})"
    elif type(ours) is not type(right) or (ours != right and not (ours != ours and right != right)):
        yield f"{ours!r}, not {right!r}"


def _shown(tensor: torch.Tensor) -> str:
    values = ", ".join(f"{value:.6g}" for value in tensor.flatten()[:4].to(torch.float64).tolist())
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} [{values}]"
