"""The pytest plugin: runs tests that measure exclusively, and prints a summary of fxpool's work at the end.

    @pytest.mark.fxpool_measure                 # or fxpool_measure("cuda:0")
    def test_it_is_fast(): ...

Such a test holds the measurement lock while it runs (`fxpool.measuring`): no other test that measures runs in any
process, fxpool's workers are suspended, and with ``-n N`` so are the other test processes. All test processes share the
host's pool and the cache directory; ``--fxpool-cache`` sets the cache directory for a run.

pytest loads this plugin wherever fxpool is installed, so modules are imported inside functions, when a test needs them.
The process that runs test processes learns from them after the collection whether any test measures.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fxpool.bench.bystanders import Bystanders
    from fxpool.bench.guard import Guard

__all__: list[str] = []

_MARKER = (
    "fxpool_measure(device=None): run the test while nothing else on this host measures and fxpool compiles nothing"
)
# fxpool.pool.host.processes.MARK, whose import takes longer than that of pytest.
_MARK = "_FXPOOL_MARK"
_COUNTS = ("hits", "joined", "seconds_saved")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fxpool")
    group.addoption("--fxpool-cache", metavar="DIR", help="store compiled graphs in DIR, for all test processes")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    directory = config.getoption("--fxpool-cache", default=None)
    if directory is not None:
        os.environ["FXPOOL_CACHE_DIR"] = os.path.abspath(directory)
    if not _is_worker(config) and getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(_Controller(), "fxpool-controller")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist tells the controller that the collection has finished
def pytest_collection_finish(session: pytest.Session) -> None:
    if _is_worker(session.config) and any(item.get_closest_marker("fxpool_measure") for item in session.items):
        with contextlib.suppress(OSError):
            open(session.config.workerinput["fxpool_measures"], "w").close()  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("fxpool_measure")
    if marker is None:
        return (yield)
    from fxpool.bench.measurement.exclusive import measuring

    with measuring(*marker.args, **marker.kwargs):
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _is_worker(session.config):
        session.config.workeroutput["fxpool"] = _counts()  # type: ignore[attr-defined]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    controller = config.pluginmanager.get_plugin("fxpool-controller")
    reports = [*controller.counts, _counts()] if controller is not None else [_counts()]
    total: dict[str, float] = {}
    for counts in reports:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    if any(total.values()):
        from fxpool import quantities

        compiled, joined, served = (round(total[name]) for name in ("compiled", "joined", "hits"))
        did = f"{quantities.counted(compiled, 'graph')} compiled, {joined} joined, {served} served from the cache"
        terminalreporter.write_line(f"fxpool: {did}, {total['seconds_saved']:.1f} s saved")


def _counts() -> dict[str, float]:
    """Return fxpool's counters in this process; {} if it is not in use."""
    counters = sys.modules.get("fxpool.counters")
    if counters is None:
        return {}
    facts = counters.snapshot()
    return {name: facts[name] for name in _COUNTS} | {"compiled": sum(facts["compiles"].values())}


class _Controller:
    """The process that runs test processes (pytest-xdist): suspends the others while one of them measures."""

    def __init__(self) -> None:
        self.counts: list[dict[str, float]] = []
        self._bystanders: Bystanders | None = None
        self._guard: Guard | None = None
        self._mark = uuid.uuid4().hex
        # A test process creates this file if one of its tests measures.
        self._measures = os.path.join(tempfile.gettempdir(), f"fxpool-pytest-{self._mark}")
        # Set before the test processes start: if this process is killed, stopped ones can be identified and killed.
        os.environ[_MARK] = self._mark

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["fxpool_measures"] = self._measures

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        try:
            os.unlink(self._measures)  # for each test process, so that a killed controller does not leave the file
        except OSError:
            return
        if self._bystanders is None:
            self._begin()

    def _begin(self) -> None:
        from fxpool import config
        from fxpool.bench.bystanders import Bystanders
        from fxpool.errors import FxpoolError
        from fxpool.pool.host import runtime_dir

        with contextlib.suppress(FxpoolError, OSError):  # measurements are then not exclusive, and a remark says so
            root = runtime_dir.runtime_root(config.current().runtime_dir)
            self._bystanders = Bystanders(root, _children, self._changed)

    def _changed(self, pid: int, stopped: bool) -> None:
        if stopped and self._guard is None:
            from fxpool.bench.guard import Guard

            self._guard = Guard(self._mark)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.counts.append(getattr(node, "workeroutput", {}).get("fxpool", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._measures)
        if self._bystanders is not None:
            self._bystanders.end()
        if self._guard is not None:
            self._guard.dismiss()


def _children() -> list[int]:
    from fxpool.pool.host import processes

    return processes.children()
