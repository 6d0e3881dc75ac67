"""`padding` answers whether a matrix product is padded, which Inductor would time on a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode

from fxpool.torch_compat import versions
from fxpool.torch_compat.cuda import padding
from fxpool.torch_compat.cuda.padding import NotMeasuredError, Operand, PaddingQuestion

QUESTION = PaddingQuestion("mm", Operand((7, 5), (5, 1), "float32"), Operand((5, 3), (3, 1), "float32", True))


def ask(rows: int = 7) -> bool:
    """Ask as Inductor does once sizes have not decided, on fake tensors."""
    from torch._inductor.fx_passes import pad_mm

    with FakeTensorMode():
        first, second = torch.empty(rows, 5), torch.empty(5, 3)
    excluded = pad_mm.should_exclude_padding_time
    pad_mm.should_exclude_padding_time = lambda match, name: name == "mat2"
    try:
        key = pad_mm.should_pad_bench_key(None, first, second, torch.ops.aten.mm)
    finally:
        pad_mm.should_exclude_padding_time = excluded
    return bool(pad_mm.get_cached_should_pad(key))


@pytest.mark.parametrize("answer", [True, False])
def test_a_known_answer_decides(answer: bool) -> None:
    asked: list[PaddingQuestion] = []

    def answers(question: PaddingQuestion) -> bool:
        asked.append(question)
        return answer

    with padding.asking(answers):
        assert ask() is answer and ask(9) is answer
    other = PaddingQuestion("mm", Operand((9, 5), (5, 1), "float32"), QUESTION.second)
    assert asked == [QUESTION, other]


def test_nothing_is_measured_where_results_have_to_be_deterministic() -> None:
    with inductor_config.patch(deterministic=True), padding.asking(lambda question: True):
        assert ask() is False


def test_missing_answers_end_a_compile_after_the_graph_s_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    def passes(gm: Any) -> str:
        return "passes ran" if not ask() else "padded"

    monkeypatch.setattr(compile_fx, "_recursive_joint_graph_passes", passes)
    with padding.asking(lambda question: True):
        assert compile_fx._recursive_joint_graph_passes(None) == "padded"
    with pytest.raises(NotMeasuredError, match="1 products") as caught, padding.asking(lambda question: None):
        compile_fx._recursive_joint_graph_passes(None)
    assert caught.value.questions == [QUESTION]


def test_an_error_that_follows_from_a_missing_answer_is_one() -> None:
    with pytest.raises(NotMeasuredError), padding.asking(lambda question: None):
        ask()
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), padding.asking(lambda question: True):
        raise ZeroDivisionError


def test_inductor_s_own_functions_are_back_afterwards() -> None:
    from torch._inductor import compile_fx
    from torch._inductor.fx_passes import pad_mm

    def all_of_them() -> list[Any]:
        return [
            pad_mm.should_pad_bench_key, pad_mm.get_cached_should_pad, pad_mm._should_pad,
            compile_fx._recursive_joint_graph_passes,
        ]  # fmt: skip

    before = all_of_them()
    with padding.asking(lambda question: True):
        assert all(now is not then for now, then in zip(all_of_them()[:2], before, strict=False))
    assert all_of_them() == before


def test_inductor_s_pass_comes_to_these_functions() -> None:
    """They are in the code of the decision, under the names that are replaced."""
    import inspect

    from torch._inductor import compile_fx
    from torch._inductor.fx_passes import pad_mm

    source = inspect.getsource(padding._undecorated(pad_mm))
    for name in ("should_pad_bench_key(", "get_cached_should_pad(", "should_exclude_padding_time"):
        assert name in source or name in inspect.getsource(pad_mm)
    assert "_recursive_joint_graph_passes(" in inspect.getsource(compile_fx)


def test_symbolic_sizes_are_asked_by_their_hints() -> None:
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    assert hasattr(pad_mm, "hint_symbols") == (versions.parse(torch.__version__) >= (2, 12))
    gm = make_fx(lambda x: x * 2, tracing_mode="symbolic")(torch.ones(7, 5))
    fake = gm.graph.find_nodes(op="placeholder")[-1].meta["val"]
    lowering = GraphLowering(gm, shape_env=fake.fake_mode.shape_env)
    with V.set_graph_handler(lowering), V.set_fake_mode(fake.fake_mode):
        assert padding._operand(fake, True) == Operand((7, 5), (5, 1), "float32", True)
