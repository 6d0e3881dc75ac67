"""Print fxpool's counters of all pytest processes at the end. Optional: nothing else depends on it."""

from collections import Counter
from typing import Any

import pytest

TOTAL: Counter[str] = Counter()


def counted() -> dict[str, int]:
    import fxpool

    stats = fxpool.stats()
    compiles = stats["compiles"]
    return {
        "compiled": compiles["worker"],
        "joined": stats["joined"],
        "cached": stats["hits"],
        "in process": compiles["in_process"],
    }


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is None:
        TOTAL.update(counted())  # without -n, or in the process that waits for the workers
    else:
        output["example"] = counted()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    TOTAL.update(getattr(node, "workeroutput", {}).get("example", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line("fxpool: " + ", ".join(f"{number} {name}" for name, number in TOTAL.items()))
