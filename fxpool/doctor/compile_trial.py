"""The compiling checks of `fxpool doctor`: a worker compiles a graph of one process, and the next process hits it.

``python -m fxpool.doctor.compile_trial compile`` (or ``gpu``) runs such a process, which prints one line of
JSON. It has temporary caches and its own server in the user's runtime directory, to test that directory.

torch and the pool are imported inside functions: only the child processes need them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fxpool import child_python, config, quantities, temporary
from fxpool.bench.environment import child_environment
from fxpool.doctor.findings import FAIL, OK, WARN, Check, Finding
from fxpool.errors import FxpoolError
from fxpool.pool.host import death_causes

__all__ = ["Trial", "judge_compile", "judge_gpu", "judge_hit"]

# Seconds; ten times the duration of a process on two slow cores.
_PATIENCE = 180.0
_ShowN = 3
_TOLERANCE = 1e-5


class Trial:
    """Runs the trial's processes: starts the first on entering, and ends all of them on leaving."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._first: _Child | None = None
        self._refused = ""

    def __enter__(self) -> Trial:
        try:
            directory = Path(self._stack.enter_context(temporary.directory("doctor")))
            self._environment = _environment(directory)
            self._first = self._start("compile")
        except OSError as error:
            self._refused = str(error)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def checks(self) -> list[Check]:
        """Return the trial's checks, to be run in this order."""
        return [("compile", self._compile), ("hit", self._hit), ("gpu", self._gpu)]

    def _start(self, trial: str) -> _Child:
        return self._stack.enter_context(_Child(trial, self._environment))

    def _compile(self) -> Iterator[Finding]:
        if self._first is None:
            yield Finding("compile", FAIL, f"could not run: {self._refused}", "see `tmp` above")
            return
        self._answer = self._first.answer()
        yield from judge_compile(*self._answer)

    def _hit(self) -> Iterator[Finding]:
        compiled = self._answer[0] if self._first is not None else None
        if compiled is None or "failed" in compiled:
            yield Finding("hit", WARN, "skipped, because nothing was compiled")
            return
        yield from judge_hit(*self._start("compile").answer())

    def _gpu(self) -> Iterator[Finding]:
        compiled = self._answer[0] if self._first is not None else None
        if compiled is None:
            yield Finding("gpu", WARN, "skipped, because torch could not be run")
        elif not compiled.get("gpu_build"):
            yield Finding("gpu", OK, "this torch is built for CPUs")
        else:
            yield from judge_gpu(*self._start("gpu").answer(), driver=os.path.exists("/proc/driver/nvidia"))


def _environment(directory: Path) -> dict[str, str]:
    """Return the user's settings, without caches and without settings that change how a graph gets to a worker."""
    from fxpool.pool.host import runtime_dir

    extra = {}
    try:
        known = config.current()
        root = runtime_dir.runtime_root(known.runtime_dir)
        runtime_dir.remove(runtime_dir.make_private(root))
        extra = {"FXPOOL_RUNTIME_DIR": str(root), "FXPOOL_JOB_TIMEOUT": str(known.job_timeout)}
        extra |= {"FXPOOL_MEMORY_HIGH_WATERMARK": str(known.memory_high_watermark)}
        extra |= {"FXPOOL_WORKERS": str(known.workers)} if known.workers is not None else {}
        extra |= {"FXPOOL_JOB_MEMORY": str(known.job_memory)} if known.job_memory is not None else {}
    except FxpoolError:
        (directory / "run").mkdir(mode=0o700)  # another check reports the error
    return child_environment(directory, extra)


class _Child:
    """A process of the trial; ended with all its children."""

    def __init__(self, trial: str, environment: dict[str, str]) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `__exit__` closes both
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            child_python.command("fxpool.doctor.compile_trial", trial),
            env=child_python.environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._output.close()
        self._errors.close()

    def answer(self) -> tuple[dict[str, Any] | None, str, str]:
        """Return (the JSON it printed, how it failed or "", the end of its error output)."""
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return None, f"the process did not end within {_PATIENCE:.0f} s", self._said()
        lines = _text(self._output).splitlines()
        with contextlib.suppress(IndexError, ValueError):
            parsed = json.loads(lines[-1])
            if isinstance(parsed, dict) and code == 0:
                return parsed, "", self._said()
        failure = f"was killed by {quantities.signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return None, f"the process {failure}", self._said()

    def _said(self) -> str:
        return _text(self._errors)[-8000:]


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").strip()


# ---------------------------------------------------------------- judging the answers


def judge_compile(answer: dict[str, Any] | None, failure: str, output: str) -> Iterator[Finding]:
    """Judge a compile: a worker must have compiled the graph, without a compile in the process itself."""
    if answer is None:
        yield _broken("compile", failure, output)
        return
    if "failed" in answer:
        yield Finding("compile", FAIL, answer["failed"], answer["remedy"] or "fix the problems listed above", output)
        return
    stats, said = answer["stats"], "; ".join(answer["said"][:_ShowN])
    reasons = ", ".join([*stats["fallbacks"], *stats["bypasses"], *stats["eager_calls"]])
    worker = stats["compiles"]["worker"] + stats["joined"]
    if not answer["difference"] <= _TOLERANCE:
        summary = f"the result differs from eager's by {answer['difference']:.1e}"
        yield Finding("compile", FAIL, summary, "please report it", output)
    elif not worker or answer["lowered"]:
        summary = f"no worker compiled the graph ({reasons or 'no reason counted'})" + (f": {said}" if said else "")
        remedy = "fix the problems listed above; FXPOOL_STRICT=1 turns this into an error with details"
        yield Finding("compile", FAIL, summary, remedy, output)
    elif not stats["entries_kept"]:
        summary = f"a worker compiled the graph, but it was not stored ({reasons})" + (f": {said}" if said else "")
        yield Finding("compile", FAIL, summary, "see `tmp` and `settings` above", output)
    else:
        summary = (
            f"a worker compiled a graph in {answer['seconds']:.1f} s, torch {answer['torch']}; nothing was lowered "
        )
        summary += "in the calling process"
        yield Finding("compile", WARN if said else OK, summary + (f". Warnings: {said}" if said else ""), "", output)


def judge_hit(answer: dict[str, Any] | None, failure: str, output: str) -> Iterator[Finding]:
    """Judge a hit: the second process must find the graph that the first process compiled."""
    if answer is None:
        yield _broken("hit", failure, output)
        return
    if "failed" in answer:
        yield Finding("hit", FAIL, answer["failed"], answer["remedy"] or "fix the problems listed above", output)
        return
    stats = answer["stats"]
    if stats["hits"] == 1 and not answer["lowered"] and answer["difference"] <= _TOLERANCE:
        yield Finding("hit", OK, f"another process loaded it from the cache in {answer['seconds']:.1f} s")
        return
    reasons = ", ".join([*stats["fallbacks"], *stats["bypasses"]])
    counts = f"{quantities.counted(stats['hits'], 'hit')}, {quantities.counted(stats['misses'], 'miss', 'misses')}"
    summary = f"another process did not find it in the cache: {counts} ({reasons})"
    yield Finding("hit", FAIL, summary, "see `cache` and `tmp` above; if they are ok, please report it", output)


def judge_gpu(answer: dict[str, Any] | None, failure: str, output: str, *, driver: bool) -> Iterator[Finding]:
    """Judge the GPUs: optional, but the facts of each GPU must be readable."""
    if answer is None:
        yield _broken("gpu", failure, output)
        return
    devices = answer["devices"]
    if not devices and driver:
        summary = "an NVIDIA driver is loaded, but torch sees no GPU" + (
            f": {answer['said']}" if answer["said"] else ""
        )
        yield Finding("gpu", WARN, summary, "check nvidia-smi, CUDA_VISIBLE_DEVICES and the driver's version", output)
    elif not devices:
        yield Finding("gpu", OK, "torch sees no GPU; graphs for the CPU need none")
    for device in devices:
        named = f"{device['index']}: {device['name']}"
        if device["error"]:
            summary = f"{named}: cannot read its facts: {device['error']}"
            yield Finding("gpu", WARN, summary, "please report it", output)
        else:
            yield Finding("gpu", OK, f"{named}, {device['facts']}")
    if devices and not answer["triton"]:
        yield Finding("gpu", FAIL, "Triton is not installed, so nothing compiles for a GPU", "pip install triton")


def _broken(name: str, failure: str, output: str) -> Finding:
    """Return the finding for a failed process, with its last message."""
    said = death_causes.sentence(output)
    remedy = "fix the problems listed above; `fxpool doctor --json` shows the complete output"
    return Finding(name, FAIL, failure + (f": {said}" if said else ""), remedy, output)


# ---------------------------------------------------------------- inside a trial process


def _try_compile() -> dict[str, Any]:
    from fxpool.bench.witness import counting

    counter = counting()
    heard: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(death_causes.sentence(record.getMessage().splitlines()[0]))

    logging.getLogger("fxpool").addHandler(Heard(logging.WARNING))
    import torch

    import fxpool

    def graph(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.t(), dim=-1).sum(0).cos()

    x = torch.linspace(0, 1, 64).reshape(8, 8)
    expected = graph(x)
    build = torch.version.cuda or getattr(torch.version, "hip", None)
    common = {"torch": torch.__version__, "gpu_build": str(build or "")}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        started = time.perf_counter()
        try:
            result = torch.compile(graph, backend="fxpool")(x)
        except Exception as error:
            traceback.print_exc()  # for --json
            return {**common, **_why(error)}
        seconds = time.perf_counter() - started
    stats: Mapping[str, Any] = fxpool.stats()
    store = stats["store"] or {}
    wanted = ("hits", "misses", "joined", "compiles", "fallbacks", "bypasses", "eager_calls")
    return {
        **common,
        "seconds": seconds,
        "difference": float((result - expected).abs().max()),
        "lowered": counter.count,
        "stats": {**{name: stats[name] for name in wanted}, "entries_kept": store.get("entries", 0)},
        "said": [*heard, *(str(one.message).splitlines()[0] for one in warned if "fxpool" in str(one.message))],
    }


def _why(error: BaseException) -> dict[str, str]:
    """Return the fxpool error that Dynamo wrapped, or else the error itself, in a sentence."""
    at: BaseException | None = error
    seen: list[BaseException] = []
    while at is not None and at not in seen and not isinstance(at, FxpoolError):
        seen.append(at)
        at = getattr(at, "inner_exception", None) or at.__cause__ or at.__context__
    if isinstance(at, FxpoolError):
        return {"failed": at.message.splitlines()[0], "remedy": at.remedy}
    first = next(filter(None, map(str.strip, str(error).splitlines())), "")
    return {"failed": f"{type(error).__name__}: {first}", "remedy": ""}


def _try_gpus() -> dict[str, Any]:
    import importlib.util

    import torch

    devices: list[dict[str, Any]] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    for index in range(torch.cuda.device_count() if available else 0):
        row = {"index": index, "name": torch.cuda.get_device_name(index), "facts": "", "error": ""}
        devices.append(row)
        if torch.version.hip:
            row["facts"] = "an AMD GPU, which its workers open"
            continue
        try:
            from fxpool.torch_compat.cuda import device_facts

            facts = device_facts.capture(index)
            memory = int(facts.properties.get("total_memory", 0)) >> 20
            row["facts"] = f"{facts.target}, {facts.driver['multiprocessor_count']} processors, {memory} MiB"
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
    said = death_causes.sentence(str(warned[-1].message)) if warned else ""
    return {"devices": devices, "said": said, "triton": importlib.util.find_spec("triton") is not None}


if __name__ == "__main__":
    print(json.dumps(_try_compile() if sys.argv[1:] == ["compile"] else _try_gpus()))
