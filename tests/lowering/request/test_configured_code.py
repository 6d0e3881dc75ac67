"""Code that a program configures: all of it is found, stands in the key by what it does, and reaches the worker."""

from __future__ import annotations

import functools
import importlib
import pickle
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from capturing import captured, key_of
from circumstances import attention

import fxpool
from fxpool.errors import CannotTravelError
from fxpool.lowering.request import ambient_state
from fxpool.torch_compat.state import configs, inductor_choices

Q = torch.ones(1, 2, 8, 16)
PASSES = """
import helper_of_passes
from torch._inductor.custom_graph_pass import CustomGraphPass

def size_of_bucket(index):
    return helper_of_passes.FACTOR * index

class Doubling(CustomGraphPass):
    def __call__(self, graph):
        return helper_of_passes.double(graph)
    def uuid(self):
        return None

class Vouched(Doubling):
    def uuid(self):
        return "version 1"

class Stateful:
    def __init__(self, limit):
        self.limit = limit
    def __call__(self, graph):
        return helper_of_passes.double(graph, self.limit)
"""
HELPER = """
import torch
FACTOR = {factor}

def double(graph, limit=1):
    for node in list(graph.nodes)[::-1]:
        if node.op == "output":
            with graph.inserting_before(node):
                value = node.args[0][0]
                node.args = ([graph.call_function(torch.ops.aten.mul.Tensor, (value, FACTOR))],)
"""


@pytest.fixture
def passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of passes that use a helper module; ``passes(factor)`` writes and imports both anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def again(factor: int) -> Any:
        (tmp_path / "passes_of_a_program.py").write_text(PASSES)
        (tmp_path / "helper_of_passes.py").write_text(HELPER.format(factor=factor))
        importlib.invalidate_caches()
        for name in ("passes_of_a_program", "helper_of_passes"):
            sys.modules.pop(name, None)
        return importlib.import_module("passes_of_a_program")

    yield again
    for name in ("passes_of_a_program", "helper_of_passes"):
        sys.modules.pop(name, None)


def refusal() -> str:
    (found,) = captured(attention, Q)
    assert found.key is None
    assert found.bypass is not None
    return found.bypass.reason


PLACES = [
    (inductor_config, "bucket_all_gathers_fx_bucket_size_determinator", lambda code: code),
    (inductor_config, "external_matmul", lambda code: [code]),
    (inductor_config, "reorder_for_compute_comm_overlap_passes", lambda code: ["sink_waits", code]),
    (inductor_config, "_fuse_ddp_communication_passes", lambda code: [code, "schedule_comm_wait"]),
    (inductor_config, "post_grad_custom_pre_pass", lambda code: code),
    (inductor_config, "autotune_lookup_table", lambda code: {"of": {"this": code}}),
    (functorch_config, "activation_memory_budget_solver", lambda code: code),
    (functorch_config, "joint_custom_pass", lambda code: functools.partial(code, 3)),
]


@pytest.mark.parametrize(("module", "name", "placed"), PLACES, ids=[name for _, name, _ in PLACES])
def test_configured_code_counts_by_content(module: Any, name: str, placed: Any, passes: Any) -> None:
    if name not in module._config:
        pytest.skip("this release has no such option")
    plain = key_of(attention, Q)
    keys = []
    for factor in (2, 2, 3):  # of a helper in another module than the configured function
        with module.patch({name: placed(passes(factor).size_of_bucket)}):
            keys.append(key_of(attention, Q))
    assert keys[0] == keys[1]
    assert len({plain, *keys}) == 3
    assert key_of(attention, Q) == plain


def test_names_of_passes_count(passes: Any) -> None:
    plain = key_of(attention, Q)
    with inductor_config.patch(_fuse_ddp_communication_passes=["schedule_comm_wait"]):
        assert key_of(attention, Q) != plain


def test_a_uuid_is_the_users_word_for_state_and_not_for_code(passes: Any) -> None:
    vouched = passes(2).Vouched
    same = []
    for state in (1, 2):
        one = vouched()
        one.state = state
        with inductor_config.patch(post_grad_custom_post_pass=one):
            same.append(key_of(attention, Q))
    assert same[0] == same[1], "it says that they are the same"
    keys = []
    for factor in (2, 3):
        with inductor_config.patch(post_grad_custom_post_pass=passes(factor).Vouched()):
            keys.append(key_of(attention, Q))
    assert keys[0] == same[0] != keys[1], "whoever changes the code may forget to say so"
    module = passes(2)
    for refused in (module.Doubling(), [module.Vouched(), module.Doubling()]):
        with inductor_config.patch(post_grad_custom_post_pass=refused):
            assert refusal() == "custom_pass_without_uuid"


def test_an_object_without_a_uuid_is_not_kept(passes: Any) -> None:
    """Its state could change while its digest stays."""
    module = passes(2)
    for state in (1, random.Random(1)):
        with inductor_config.patch(joint_custom_post_pass=module.Stateful(state)):
            assert refusal() == "custom_pass_without_uuid"


@pytest.mark.slow
def test_choices_count(passes: Any) -> None:
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    plain = key_of(attention, Q)
    with V.set_choices_handler(InductorChoices()):
        assert key_of(attention, Q) == plain, "torch's own"
    with V.set_choices_handler(OwnChoices()):
        assert list(configs.code_values()) == [inductor_choices.HANDLER]
        assert key_of(attention, Q) != plain
    if "inductor_choices_class" in inductor_config._config:
        with inductor_config.patch(inductor_choices_class=OwnChoices):
            configured = key_of(attention, Q)
        with inductor_config.patch(inductor_choices_class=OtherChoices):
            assert len({plain, configured, key_of(attention, Q)}) == 3
    assert key_of(attention, Q) == plain


class OwnChoices(__import__("torch._inductor.choices")._inductor.choices.InductorChoices):  # type: ignore[misc]
    def uuid(self) -> str:
        return "own"


class OtherChoices(OwnChoices):
    def uuid(self) -> str:
        return "other"


def test_choices_are_entered_and_left() -> None:
    from torch._inductor.virtualized import V

    V.set_choices_handler(OwnChoices())
    try:
        state = pickle.loads(pickle.dumps(ambient_state.capture(before_autograd=True)))
    finally:
        del torch._inductor.virtualized.threadlocal.__torchinductor_choices
    with ambient_state.entered(state):
        assert type(V.choices) is OwnChoices
    assert type(V.choices).__module__ == "torch._inductor.choices"
    if "inductor_choices_class" in inductor_config._config:
        with inductor_config.patch(inductor_choices_class=OwnChoices):
            state = ambient_state.capture(before_autograd=True)
        with ambient_state.entered(state):
            assert type(V.choices) is OwnChoices
        assert type(V.choices).__module__ == "torch._inductor.choices"


# ---------------------------------------------------------------- on the way to a worker


def test_digests_tell_what_the_program_has_from_what_a_worker_imports(passes: Any) -> None:
    assert ambient_state.code_digests() == {}
    found = []
    for factor in (2, 2, 3):
        with inductor_config.patch(post_grad_custom_post_pass=passes(factor).Vouched()):
            state = ambient_state.capture(before_autograd=True)
            assert ambient_state.code_digests(state) == ambient_state.code_digests()
            found.append(ambient_state.code_digests())
    assert list(found[0]) == ["inductor.post_grad_custom_post_pass"]
    assert found[0] == found[1]
    assert found[0] != found[2], "the uuid says nothing of what is imported"
    # `state` was captured of factor 3, and here the module is another by now: what is imported by name is.
    passes(2)
    arrived = pickle.loads(pickle.dumps(state))
    with ambient_state.entered(arrived):
        assert ambient_state.code_digests() == found[0]


def test_code_of_the_main_script_is_sent_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_the_script(number: int) -> int:
        return number + 1

    of_the_script.__module__, of_the_script.__qualname__ = "__main__", "of_the_script"
    for value in (of_the_script, [of_the_script], {"a": of_the_script}, functools.partial(of_the_script, 1)):
        with inductor_config.patch(bucket_all_gathers_fx_bucket_size_determinator=value):
            state = ambient_state.capture(before_autograd=True)
            digests = ambient_state.code_digests(state)
        arrived = pickle.loads(pickle.dumps(state))
        with ambient_state.entered(arrived):
            assert inductor_config.bucket_all_gathers_fx_bucket_size_determinator is not value
            assert ambient_state.code_digests() == digests


def test_code_that_cannot_be_sent_is_refused() -> None:
    lock = threading.Lock()

    def holds_a_lock(graph: object) -> None:
        lock.acquire()

    with inductor_config.patch(post_grad_custom_pre_pass=holds_a_lock), pytest.raises(CannotTravelError) as refused:
        ambient_state.capture(before_autograd=True)
    assert refused.value.reason == "custom_pass"


def test_a_thread_has_what_the_program_configured(passes: Any) -> None:
    """Since 2.12 another thread has values of its own; before, it has those in force."""

    seen: list[Any] = []

    def look() -> None:
        with ambient_state.entered_by_thread(state):
            seen.append(inductor_config.post_grad_custom_post_pass)

    with inductor_config.patch(post_grad_custom_post_pass=passes(2).Vouched()):
        state = ambient_state.capture(before_autograd=True)
        configured = inductor_config.post_grad_custom_post_pass
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [configured]


@pytest.mark.slow
def test_a_pass_of_the_options_is_in_force(shared_pool: Path, cache: Path, passes: Any) -> None:
    """`torch.compile(options=...)` is in force for the key and for the compile, here, as the pass is an object."""
    x = torch.arange(6.0)

    def plus_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def compiled(**options: Any) -> torch.Tensor:
        torch._dynamo.reset()
        found: torch.Tensor = torch.compile(plus_one, backend="fxpool", options=options)(x)
        return found

    torch.testing.assert_close(compiled(), x + 1)
    module = passes(2)
    for _ in range(2):
        torch.testing.assert_close(compiled(post_grad_custom_post_pass=module.Stateful(1)), (x + 1) * 2)
    torch.testing.assert_close(compiled(), x + 1)
    stats = fxpool.stats()
    assert (stats["hits"], stats["misses"]) == (1, 1) and stats["fallbacks"]["code_unknown"] == 2
    assert stats["compiles"] == {"worker": 1, "in_process": 2}


def test_a_vouched_pass_of_the_options_runs_in_a_worker(shared_pool: Path, cache: Path, passes: Any) -> None:
    x = torch.arange(6.0)

    def minus_one(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    for factor in (2, 2, 3):
        torch._dynamo.reset()
        options = {"post_grad_custom_post_pass": passes(factor).Vouched()}
        torch.testing.assert_close(torch.compile(minus_one, backend="fxpool", options=options)(x), (x - 1) * factor)
    stats = fxpool.stats()
    assert (stats["hits"], stats["misses"]) == (1, 2)
    assert stats["compiles"] == {"worker": 2, "in_process": 0}


# ---------------------------------------------------------------- however torch exports it


class Uncopied:
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("there is one of these only")

    def __call__(self, *_: Any) -> None: ...


def test_a_value_that_cannot_be_copied_is_found_all_the_same() -> None:
    with inductor_config.patch(external_matmul=[Uncopied()], max_fusion_size=7):
        state, code = configs.captured()
        assert list(code) == ["inductor.external_matmul"]
        assert code["inductor.external_matmul"] is inductor_config.external_matmul
        assert state["inductor"]["max_fusion_size"] == 7
    assert configs.captured()[1] == {}


def test_releases_that_keep_nothing_are_read_entry_by_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    with inductor_config.patch(external_matmul=[attention], max_fusion_size=7, pre_grad_fusion_options={"a": {"b": 1}}):
        kept = configs.captured()
        monkeypatch.setattr(configs, "_KEEPS", False)
        assert configs.captured() == kept
    inductor_config.pre_grad_fusion_options["in place"] = {}
    try:
        assert "in place" in configs.capture()["inductor"]["pre_grad_fusion_options"]
        monkeypatch.undo()
        assert "in place" in configs.capture()["inductor"]["pre_grad_fusion_options"]
    finally:
        del inductor_config.pre_grad_fusion_options["in place"]
