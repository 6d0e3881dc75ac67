"""`process_groups` numbers the process groups in a graph, and shows a worker groups of the same sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fxpool.errors import CannotTravelError
from fxpool.torch_compat.dynamo import process_groups

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this build has no torch.distributed")


def test_the_argument_that_names_a_group_is_found() -> None:
    import torch.distributed._functional_collectives  # defines operators

    collectives = torch.ops._c10d_functional
    assert process_groups.position(collectives.all_reduce.default) == 2  # input, reduction, group
    assert process_groups.position(collectives.all_reduce) == 2
    assert process_groups.position(collectives.all_gather_into_tensor.default) == 2  # input, size, group
    assert process_groups.position(collectives.wait_tensor.default) is None
    assert process_groups.position(torch.ops.aten.sin.default) is None
    assert process_groups.position(torch.sin) is None


def test_groups_in_code_are_numbered() -> None:
    names = [process_groups.name_in_code(number) for number in (0, 3, 12)]
    assert [process_groups.number_in_code(name) for name in names] == [0, 3, 12]
    assert [process_groups.number_in_code(text) for text in ("0", "default_pg", names[0] + "x")] == [None] * 3


def test_groups_are_shown_with_their_sizes_and_taken_away() -> None:
    first, second = map(process_groups.name_in_code, (0, 1))
    with process_groups.shown([4, 2], default=False):
        assert (process_groups.size(first), process_groups.size(second)) == (4, 2)
    for name in (first, second, "unknown"):
        with pytest.raises(LookupError):
            process_groups.size(name)


def test_a_collective_over_a_shown_group_can_be_traced() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with process_groups.shown([4], default=False), FakeTensorMode():
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(
            torch.ones(3, 2), process_groups.size(process_groups.name_in_code(0)), process_groups.name_in_code(0)
        )
        assert gathered.shape == (12, 2)


def test_without_groups_nothing_is_registered() -> None:
    with process_groups.shown([], default=False), pytest.raises(LookupError):
        process_groups.size(process_groups.name_in_code(0))


def _named() -> torch.distributed.ProcessGroup:
    return torch.distributed.distributed_c10d._resolve_process_group(process_groups.name_in_code(0))


def test_a_default_group_is_shown_if_the_client_has_one() -> None:
    assert not process_groups.initialized()
    with process_groups.shown([], default=True):
        assert process_groups.initialized()
    with process_groups.shown([4], default=False):
        assert not process_groups.initialized()
    assert not process_groups.initialized()


def _symmetric() -> bool:
    from torch.distributed._symmetric_memory import is_symm_mem_enabled_for_group

    return is_symm_mem_enabled_for_group(process_groups.name_in_code(0))


@pytest.mark.parametrize(
    ("ask", "fact"),
    [
        (torch.distributed.get_rank, "the rank"),
        (torch.distributed.get_world_size, "the number of ranks"),
        (lambda: _named().rank(), "the rank"),
        (lambda: torch.distributed.get_rank(_named()), "the rank"),
        (_symmetric, "symmetric memory"),
    ],
)
@pytest.mark.parametrize("passed_over", [False, True])
def test_a_compile_that_asks_for_what_differs_is_left_to_the_client(
    ask: Callable[[], object], fact: str, passed_over: bool
) -> None:
    with pytest.raises(CannotTravelError, match=f"differs_between_ranks.*{fact}"):
        with process_groups.shown([4], default=True):
            try:
                ask()
            except RuntimeError:
                if not passed_over:
                    raise
    assert not process_groups.initialized()


def test_another_error_is_the_compiles() -> None:
    with pytest.raises(KeyError), process_groups.shown([4], default=True):
        raise KeyError
