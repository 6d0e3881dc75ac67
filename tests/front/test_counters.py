from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import fxpool
from fxpool import counters


def test_the_names_are_there_before_anything_was_counted() -> None:
    snapshot = counters.snapshot()
    assert [snapshot[name] for name in ("hits", "misses", "guard_misses")] == [0, 0, 0]
    assert snapshot["bypasses"] == snapshot["fallbacks"] == {}
    assert snapshot["compiles"] == {"worker": 0, "in_process": 0}
    assert snapshot["remote"] == {"hits": 0, "misses": 0, "writes": 0}
    assert (snapshot["seconds_saved"], snapshot["graphs"]) == (0.0, [])


def test_numbers_and_tables_of_reasons() -> None:
    counters.count("hits")
    counters.count("hits", n=2)
    counters.count("bypasses", "has_hop")
    counters.count("compiles", "worker")
    counters.count("something_new", "why")
    counters.add_seconds("seconds_saved", 2.5)
    counters.add_seconds("seconds_saved", -1.0)
    snapshot = counters.snapshot()
    assert snapshot["hits"] == 3
    assert snapshot["bypasses"] == {"has_hop": 1}
    assert snapshot["compiles"] == {"worker": 1, "in_process": 0}
    assert snapshot["something_new"] == {"why": 1}
    assert snapshot["seconds_saved"] == 2.5


def test_seconds_of_waiting_for_the_remote_add_up() -> None:
    counters.add_seconds("remote_seconds", 0.5)
    counters.add_seconds("remote_seconds", 0.25)
    assert counters.snapshot()["remote_seconds"] == 0.75
    counters.reset()
    assert counters.snapshot()["remote_seconds"] == 0.0


def test_a_name_is_a_number_or_a_table() -> None:
    with pytest.raises(ValueError, match="takes no reason"):
        counters.count("hits", "why")
    with pytest.raises(ValueError, match="needs a reason"):
        counters.count("fallbacks")


def test_graphs_are_kept_in_order_and_bounded() -> None:
    for number in range(counters.KEPT_GRAPHS + 5):
        counters.record_graph({"label": number})
    graphs = counters.snapshot()["graphs"]
    assert len(graphs) == counters.KEPT_GRAPHS
    assert (graphs[0]["label"], graphs[-1]["label"]) == (5, counters.KEPT_GRAPHS + 4)


def test_a_snapshot_is_a_copy() -> None:
    counters.record_graph({"label": "a"})
    snapshot = counters.snapshot()
    snapshot["compiles"]["worker"] = 9
    snapshot["graphs"][0]["label"] = "b"
    assert counters.snapshot()["compiles"]["worker"] == 0
    assert counters.snapshot()["graphs"][0]["label"] == "a"


def test_counting_from_many_threads_loses_nothing() -> None:
    def work() -> None:
        for _ in range(2000):
            counters.count("misses")
            counters.count("fallbacks", "x")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = counters.snapshot()
    assert (snapshot["misses"], snapshot["fallbacks"]["x"]) == (16000, 16000)


def test_stats_is_plain_data_with_the_stores_sizes(tmp_path: Path) -> None:
    counters.count("misses")
    assert fxpool.stats()["store"] is None  # asking does not create the directory
    cache = tmp_path / "made"
    cache.mkdir(mode=0o700)
    fxpool.configure(cache_dir=cache)
    stats = fxpool.stats()
    assert stats["store"] == {"entries": 0, "blobs": 0, "bytes": 0, "evicted": 0}
    assert json.loads(json.dumps(stats)) == stats
    (cache / "toolchain").mkdir()
    (cache / "toolchain" / "header.gch").write_bytes(b"h" * 10_000_000)
    assert fxpool.stats()["cache_disk_bytes"] > 10_000_000 > stats["cache_disk_bytes"]
