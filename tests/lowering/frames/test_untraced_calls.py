"""Code of the program that Dynamo runs instead of tracing it refuses a frame; other code that runs then does not."""

from __future__ import annotations

import contextlib
import enum
import functools
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import frame_changes
import pytest
import torch

from fxpool.torch_compat.frames import frame_conversion
from fxpool.torch_compat.frames.recording import Recorder

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="forked children can't use a GPU")

SCALE = 2


class Level(enum.Enum):
    LOW = 1

    def __bool__(self) -> bool:
        return SCALE == 2


class Wrapper(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y


class Settings:
    """Has attributes under other names, as configurations of libraries do."""

    def __init__(self) -> None:
        self.width = 3

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__("width" if name == "size" else name)


SETTINGS = Settings()


def largest(x: torch.Tensor) -> torch.Tensor:
    return x * max([1, 2], key=_negative)


def _negative(value: int) -> int:
    return -value


def by_truth(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if Level.LOW else x


def by_settings(x: torch.Tensor) -> torch.Tensor:
    return x * SETTINGS.width


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def _traced(
    function: Callable[..., Any],
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> dict[str, Any]:
    """Trace a function in a forked child; return why its frame would be refused, and the names that torch looked up."""

    def work() -> dict[str, Any]:
        recorder = Recorder()

        def trace(call: frame_conversion.Call, trace: Callable[[Recorder | None], Any]) -> Any:
            with around():
                return trace(recorder)

        frame_conversion.surround(trace)
        torch.compile(function, backend="eager")(torch.ones(2, 4))
        return {"refusal": recorder.refusal, "probes": sorted(recorder.probes), "traced": recorder.code is not None}

    return frame_changes.in_child(work)


@pytest.mark.parametrize(("function", "name"), [(largest, "_negative"), (by_truth, "__bool__")])
def test_code_that_dynamo_runs_refuses_the_frame(function: Callable[..., Any], name: str) -> None:
    report = _traced(function)
    assert report["traced"] and report["refusal"][0] == "object"
    assert f"tracing ran {name} ({__file__}:" in report["refusal"][1]


@pytest.mark.parametrize("function", [plain, by_settings])
def test_code_that_dynamo_traces_does_not(function: Callable[..., Any]) -> None:
    assert _traced(function) == {"refusal": None, "probes": [], "traced": True}


def test_attributes_that_torch_looks_up_for_itself_do_not() -> None:
    report = _traced(Wrapper())
    assert report["refusal"] is None and report["traced"]
    assert "_is_fsdp_managed_module" in report["probes"] and "weight" not in report["probes"]


def test_handlers_of_messages_do_not() -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            emitted.append(record.getMessage())

    @contextlib.contextmanager
    def verbose() -> Any:
        logging.getLogger("torch._dynamo").addHandler(Handler())
        torch._logging.set_logs(dynamo=logging.DEBUG)
        yield
        assert emitted

    emitted: list[str] = []
    assert _traced(plain, verbose)["refusal"] is None


def test_callbacks_of_the_garbage_collector_do_not() -> None:
    @contextlib.contextmanager
    def collecting() -> Any:
        threshold = gc.get_threshold()
        gc.callbacks.append(_collected)
        gc.set_threshold(1)
        yield
        gc.set_threshold(*threshold)
        assert _phases

    assert _traced(plain, collecting)["refusal"] is None


_phases: list[str] = []


def _collected(phase: str, info: object) -> None:
    _phases.append(_name_of(phase))


def _name_of(phase: str) -> str:
    return phase.upper()


def test_other_threads_do_not() -> None:
    @contextlib.contextmanager
    def working() -> Any:
        over = threading.Event()
        thread = threading.Thread(target=_work, args=(over,))
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    assert _traced(plain, working)["refusal"] is None


def _work(over: threading.Event) -> None:
    while not over.is_set():
        _negative(1)
        time.sleep(0.001)


def test_where_calls_are_not_heard_the_frame_is_refused() -> None:
    @contextlib.contextmanager
    def profiled() -> Any:
        if sys.version_info >= (3, 12):
            monitoring: Any = sys.monitoring
            free = [number for number in range(6) if monitoring.get_tool(number) is None]
            for number in free:
                monitoring.use_tool_id(number, "another")
            yield
            for number in free:
                monitoring.free_tool_id(number)
        else:
            sys.setprofile(_ignore)
            yield
            sys.setprofile(None)

    report = _traced(plain, profiled)
    assert report["traced"] and report["refusal"][0] == "profiler"


def _ignore(frame: object, event: str, argument: object) -> None: ...


def test_nothing_is_left_when_tracing_is_over() -> None:
    def tools() -> list[Any]:
        if sys.version_info < (3, 12):
            return [sys.getprofile()]
        monitoring: Any = sys.monitoring
        return [monitoring.get_tool(number) for number in range(6)]

    def work() -> dict[str, Any]:
        before = tools()
        frame_conversion.surround(lambda call, trace: trace(Recorder()))
        torch.compile(functools.partial(plain), backend="eager")(torch.ones(2))
        with contextlib.suppress(torch._dynamo.exc.Unsupported):
            torch.compile(torch._dynamo.graph_break, backend="eager", fullgraph=True)()
        return {"same": tools() == before}

    assert frame_changes.in_child(work) == {"same": True}
