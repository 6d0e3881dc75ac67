"""Graphs with collectives: compiled in a worker that has no process group, once for all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import torch

from fxpool.torch_compat.dynamo import process_groups


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return ranks.reports("collectives_child.py", directory=tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "functional collectives",
        "a group of its own",
        "torch.distributed",
        "a sharded tensor",
        "tensor parallel",
        "FSDP2",
    ],
)
def test_each_graph_is_compiled_once_for_both_ranks(name: str, two: list[dict[str, Any]]) -> None:
    first, second = (report[name] for report in two)
    graphs = first["served"] + first["worker"]
    assert graphs >= 1 and second["served"] + second["worker"] == graphs
    assert first["worker"] + second["worker"] == graphs, "one compile each"
    assert first["lowered"] == second["lowered"] == 0
    assert first["bypasses"] == second["bypasses"] == {}


@pytest.mark.slow
def test_groups_of_other_sizes_are_other_graphs(two: list[dict[str, Any]]) -> None:
    """The programs are the same but for the group; neither was served the other's code."""
    assert sum(report["a group of its own"]["worker"] for report in two) == 1


@pytest.mark.slow
def test_a_graph_whose_code_depends_on_the_rank_is_compiled_in_each_process(two: list[dict[str, Any]]) -> None:
    if "a rank" not in two[0]:
        pytest.skip("this release has no such option")
    for report in two:
        graph = report["a rank"]
        assert (graph["served"], graph["worker"], graph["lowered"]) == (0, 0, 1)
        assert "differs_between_ranks" in graph["fallbacks"]


@pytest.mark.slow
def test_names_in_code() -> None:
    assert process_groups.number_in_code(process_groups.name_in_code(12)) == 12
    assert process_groups.number_in_code("0") is None


@pytest.mark.slow
def test_a_worker_s_groups_have_a_size_and_end(tmp_path: Path) -> None:
    name = process_groups.name_in_code(0)
    with process_groups.shown([4], default=False):
        assert process_groups.size(name) == 4
    with pytest.raises(LookupError):
        process_groups.size(name)


@pytest.mark.slow
def test_which_argument_names_a_group() -> None:
    reduce = torch.ops._c10d_functional.all_reduce
    assert process_groups.position(reduce) == process_groups.position(reduce.default) == 2
    assert process_groups.position(torch.ops.aten.add.Tensor) is None
