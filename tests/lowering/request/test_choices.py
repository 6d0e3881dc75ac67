"""Inductor's choices that a program registers (since torch 2.15) are in the key, and a worker compiles with them."""

from __future__ import annotations

import importlib
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from capturing import key_of
from torch._inductor import choices as torchs_choices
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

import fxpool
from fxpool.codecache.key import configured_code
from fxpool.codecache.key.cacheable import Bypass
from fxpool.lowering.request import ambient_state
from fxpool.torch_compat.state import configs, inductor_choices

X = torch.ones(4, 4)
core: Any = torchs_choices
pytestmark = pytest.mark.skipif(
    not hasattr(torchs_choices, "register_inductor_choices"), reason="this release of torch registers no choices"
)


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x + 1


class Own(InductorChoices):
    def uuid(self) -> str:
        return "own"

    def should_use_cooperative_reduction(self, features: Any) -> bool:
        return True


class Other(Own):
    def uuid(self) -> str:
        return "other"


class Unnamed(Own):
    def uuid(self) -> None:  # type: ignore[override]
        return None


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    before = dict(core._registered_inductor_choices)
    yield
    core._registered_inductor_choices = before
    forget_handler()


def forget_handler() -> None:
    vars(torch._inductor.virtualized.threadlocal).pop(torch._inductor.virtualized._choices._key, None)


def register(*registrations: tuple[str, Any]) -> None:
    for key in list(core._registered_inductor_choices):
        core.unregister_inductor_choices(key)
    for key, factory in registrations:
        core.register_inductor_choices(key, factory)


def in_a_thread(function: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_what_is_registered_counts_and_in_which_order() -> None:
    keys = [key_of(product, X)]
    for registrations in ([("a", Own)], [("a", Other)], [("a", Own), ("b", Other)], [("b", Other), ("a", Own)]):
        register(*registrations)
        keys.append(key_of(product, X))
        assert key_of(product, X) == keys[-1]
    assert len(set(keys)) == len(keys)
    register()
    assert key_of(product, X) == keys[0]


def test_a_thread_that_has_not_compiled_yet_has_the_same_key() -> None:
    for registrations in ([("a", Own)], [("a", Own), ("b", Other)]):
        register(*registrations)
        here = configs.code_values()
        assert list(here) == [inductor_choices.REGISTERED], "the handler is made of them"
        assert in_a_thread(configs.code_values) == here


def test_registrations_count_beside_a_configured_class() -> None:
    with inductor_config.patch(inductor_choices_class=Own):
        configured_alone = key_of(product, X)
        register(("a", Other))
        assert key_of(product, X) != configured_alone


def test_a_handler_of_a_thread_counts_over_what_is_registered() -> None:
    register(("a", Own), ("b", Other))
    registered, composed = key_of(product, X), V.choices
    with V.set_choices_handler(Other()):
        assert key_of(product, X) != registered
    register(("a", Own))
    with V.set_choices_handler(composed):  # as in a thread that has compiled before
        key = key_of(product, X)
        assert composed.uuid() != "own"
        composed.should_use_cooperative_reduction(None)  # it remembers who was asked
        assert key_of(product, X) == key != registered


def test_code_of_what_a_factory_makes_counts_beside_its_uuid() -> None:
    class Same(InductorChoices):
        def uuid(self) -> str:
            return "own"

    found = [configured_code.identity(inductor_choices.REGISTERED, [["a", factory]]) for factory in (Own, Same)]
    assert found[0] != found[1]


def test_a_uuid_of_none_keeps_nothing() -> None:
    with pytest.raises(Bypass):
        configured_code.identity(inductor_choices.REGISTERED, [["a", Unnamed]])


@pytest.mark.parametrize("handler", [False, True])
def test_a_worker_is_put_into_them(handler: bool) -> None:
    register(("a", Own), ("b", Other))
    if handler:  # other than what is registered
        kept = V.choices
        register(("b", Other), ("a", Own))
        V.set_choices_handler(kept)
    expected = [key for key, _ in core.registered_inductor_choices()]
    uuid = V.choices.uuid()
    state = pickle.loads(pickle.dumps(ambient_state.capture(before_autograd=True)))
    register()
    forget_handler()
    with ambient_state.entered(state):
        assert V.choices.uuid() == uuid
        assert V.choices.should_use_cooperative_reduction(None) is True
        assert [key for key, _ in core.registered_inductor_choices()] == expected, "for other threads of the worker"
        assert ambient_state.code_digests() == ambient_state.code_digests(ambient_state.capture(before_autograd=True))
    assert core.registered_inductor_choices() == ()
    assert type(V.choices) is InductorChoices


def test_a_worker_of_a_program_without_choices_has_torchs() -> None:
    state = pickle.loads(pickle.dumps(ambient_state.capture(before_autograd=True)))
    register(("a", Own))  # by a module that is imported on the way
    with ambient_state.entered(state):
        assert type(V.choices) is InductorChoices
        assert core.registered_inductor_choices() == ()
    assert type(V.choices) is Own


CHOICES = """
from torch._inductor.choices import InductorChoices

class OfAProgram(InductorChoices):
    def uuid(self):
        return "of a program"
"""


def test_a_worker_compiles_with_them(
    shared_pool: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "choices_of_a_program.py").write_text(CHOICES)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("choices_of_a_program")

    def compiled() -> None:
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(product, backend="fxpool")(X), product(X))

    compiled()
    for registrations in ([("a", module.OfAProgram)], [("a", module.OfAProgram), ("b", Own)]):
        register(*registrations)
        compiled()
        compiled()
    stats = fxpool.stats()
    assert (stats["hits"], stats["misses"], stats["fallbacks"]) == (2, 3, {})
    assert stats["compiles"] == {"worker": 3, "in_process": 0}
