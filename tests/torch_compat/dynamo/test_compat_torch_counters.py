"""`torch_counters` counts looks into the cache where torch counts its own: users' tools read these counters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters, get_metrics_context

from fxpool.torch_compat.dynamo import torch_counters


class Seen:
    """What a call counts, adds to the metrics of the compile under way, and writes into the structured trace."""

    def __init__(self) -> None:
        self.metrics: dict[str, Any] = {}
        self.artifacts: list[tuple[str, dict[str, Any]]] = []

    def counted(self) -> dict[str, dict[str, int]]:
        return {section: dict(counts) for section, counts in counters.items() if counts}

    def trace(self, kind: str, metadata_fn: Callable[[], Any] = dict, **more: Any) -> None:
        assert kind == "artifact" and metadata_fn()["encoding"] == "json"
        self.artifacts.append((metadata_fn()["name"], json.loads(more["payload_fn"]())))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    seen = Seen()
    context = get_metrics_context()
    monkeypatch.setattr(context, "_on_exit", lambda began, ended, values, *error: seen.metrics.update(values))
    monkeypatch.setattr(torch_counters, "trace_structured", seen.trace)
    before = {section: counts.copy() for section, counts in counters.items()}
    counters.clear()
    yield seen
    counters.clear()
    counters.update(before)


PLAIN = [torch.ones(2), 3]
TRAINED = [torch.ones(2, requires_grad=True)]


def test_a_hit_counts_in_both_of_torch_s_caches(seen: Seen) -> None:
    with get_metrics_context():
        torch_counters.looked_up("hit", before_autograd=True, inputs=PLAIN, key="abc")
    assert seen.counted() == {
        "aot_autograd": {"autograd_cache_hit": 1},
        "inductor": {"fxgraph_cache_hit": 1},
    }
    assert seen.metrics == {"aotautograd_local_cache_hit_count": 1, "inductor_fx_local_cache_hit_count": 1}
    about = {"cache_state": "hit", "key": "abc"}
    assert seen.artifacts == [("aotautograd_cache_hit", about), ("fx_graph_cache_hit", about)]


def test_a_graph_with_a_backward_is_two_of_inductor_s(seen: Seen) -> None:
    torch_counters.looked_up("guard_miss", before_autograd=True, inputs=TRAINED)
    with torch.no_grad():
        torch_counters.looked_up("miss", before_autograd=True, inputs=TRAINED)
    torch_counters.looked_up("miss", before_autograd=False, inputs=TRAINED)
    assert seen.counted() == {
        "aot_autograd": {"autograd_cache_guard_miss": 1, "autograd_cache_miss": 2},
        "inductor": {"fxgraph_cache_miss": 4},
    }
    names = [name for name, _ in seen.artifacts]
    assert names.count("fx_graph_cache_miss") == 4 and names.count("aotautograd_cache_miss") == 2
    assert seen.metrics == {}  # no compile is under way in this thread


def test_bypasses_are_counted_with_their_reason(seen: Seen) -> None:
    torch_counters.bypass(before_autograd=True, inputs=TRAINED, reason="why")
    torch_counters.bypass(before_autograd=False, inputs=PLAIN, reason="why")
    torch_counters.bypass_before_autograd("also")
    assert seen.counted() == {"aot_autograd": {"autograd_cache_bypass": 2}, "inductor": {"fxgraph_cache_bypass": 3}}
    about = {"cache_state": "bypass", "cache_bypass_reason": "why"}
    assert seen.artifacts[0] == ("aotautograd_cache_bypass", about)
    assert seen.artifacts[1:4] == [("fx_graph_cache_bypass", about)] * 3


def test_what_is_compiled_and_saved_is_counted(seen: Seen) -> None:
    torch_counters.compiled()
    torch_counters.saved(before_autograd=True)
    torch_counters.saved(before_autograd=False)
    assert seen.counted() == {"aot_autograd": {"total": 1, "ok": 1, "autograd_cache_saved": 1}}


def test_a_miss_is_explained_in_the_trace(seen: Seen) -> None:
    torch_counters.miss_explained(lambda: json.dumps({"nearest": None}))
    assert seen.artifacts == [("fxpool_miss_explained", {"nearest": None})]


def test_nothing_is_explained_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    log = torch._logging._internal.trace_log
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", False)

    def explanation() -> str:
        raise AssertionError("asked for without a trace")

    torch_counters.miss_explained(explanation)


def test_torch_counts_its_caches_by_these_names() -> None:
    """Each name is in the source of the cache that fxpool counts for: tools know them."""
    import inspect

    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor import codecache, compile_fx

    of_autograd, of_inductor = inspect.getsource(autograd_cache), inspect.getsource(codecache)
    for state in ("hit", "miss", "bypass", "saved"):
        assert f"autograd_cache_{state}" in of_autograd
    assert "autograd_cache_guard_miss" in of_autograd
    for state in ("hit", "miss", "bypass"):
        assert f"fxgraph_cache_{state}" in of_inductor + inspect.getsource(compile_fx)
    names = of_autograd + of_inductor
    for metric in ("aotautograd_local_cache_{}_count", "inductor_fx_local_cache_{}_count"):
        for state in ("hit", "miss"):
            assert metric.format(state) in names
