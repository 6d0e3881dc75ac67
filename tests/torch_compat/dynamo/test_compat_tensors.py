"""`tensors` describes tensors as data and makes fake ones of that elsewhere, with their views, storages and symbols."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fxpool.torch_compat.dynamo import tensors
from fxpool.torch_compat.dynamo.tensors import Builder, Describer, UnsupportedTensor

# torch hides it where it is shown, which is too late where warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


def rebuilt(*values: torch.Tensor) -> list[FakeTensor]:
    """Describe tensors, and build them in another mode from what has been pickled."""
    describer = Describer()
    facts = pickle.loads(pickle.dumps([describer.describe(value) for value in values]))
    builder = Builder(tensors.new_fake_mode(ShapeEnv()))
    return [builder.build(one) for one in facts]


def looks(tensor: torch.Tensor) -> list[Any]:
    return [
        tuple(tensor.size()), tuple(tensor.stride()), tensor.storage_offset(), tensor.dtype, tensor.device,
        tensor.requires_grad, tensor.is_leaf, tensor.is_conj(), tensor.is_neg(), isinstance(tensor, torch.nn.Parameter),
        tensor._is_view(),
    ]  # fmt: skip


TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "dense": lambda: torch.ones(2, 3, dtype=torch.bfloat16),
    "strided": lambda: torch.empty_strided((2, 3), (4, 7)),
    "part": lambda: torch.ones(8)[3:6],
    "parameter": lambda: torch.nn.Parameter(torch.ones(4)),
    "computed": lambda: torch.ones(4, requires_grad=True) * 2,
    "view of a leaf": lambda: torch.ones(4, 4, requires_grad=True).t(),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "number": lambda: torch.tensor(3),
    "empty": lambda: torch.empty(0, 3),
    "meta": lambda: torch.ones(3, device="meta"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_comes_back_as_it_was(name: str) -> None:
    tensor = TENSORS[name]()
    (made,) = rebuilt(tensor)
    assert looks(made) == looks(tensor)
    assert tensors.is_fake(made) and not tensors.is_fake(tensor)


def test_an_inference_tensor_stays_one() -> None:
    with torch.inference_mode():
        tensor = torch.ones(2)
    (made,) = rebuilt(tensor)
    assert made.is_inference() and tensor.is_inference()


def test_tensors_share_memory_and_bases_as_before() -> None:
    base = torch.ones(6)
    whole, part, other = rebuilt(base, base[2:4], torch.ones(6))
    assert part._is_view() and part._base is whole
    assert part.untyped_storage()._cdata == whole.untyped_storage()._cdata != other.untyped_storage()._cdata
    (again, same) = rebuilt(base, base)
    assert again is same


def test_a_view_that_may_not_be_written_to_stays_one() -> None:
    part = torch.ones(4, requires_grad=True).unbind()[0]
    (made,) = rebuilt(part)
    for tensor in (part, made):
        assert (
            int(torch._C._autograd._get_creation_meta(tensor)) == int(torch._C._autograd._get_creation_meta(part)) > 0
        )


def symbolic(tensor: torch.Tensor) -> FakeTensor:
    """A fake tensor whose sizes are symbols."""
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
    from torch._dynamo.source import LocalSource

    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(tensor, symbolic_context=context, source=LocalSource("x"))


def test_symbolic_sizes_are_described_as_they_are() -> None:
    fake = symbolic(torch.ones(3, 5))
    facts = Describer().describe(fake)
    assert [isinstance(size, torch.SymInt) for size in facts.size] == [True, True]
    made = Builder(fake.fake_mode).build(facts)
    assert made.shape == fake.shape and made.stride() == fake.stride()
    assert made.shape[0].node.expr == fake.shape[0].node.expr


def test_the_number_in_a_tensor_of_dynamo_s_is_its_item() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(torch.tensor(3))
    assert tensors.item_of(fake) is None
    from torch._dynamo.source import LocalSource

    symbol = mode.shape_env.create_symbol(3, LocalSource("n"), dynamic_dim=DimDynamic.DYNAMIC)
    number = mode.shape_env.create_symintnode(symbol, hint=3, source=LocalSource("n"))
    fake.item_memo = number
    assert id(tensors.item_of(fake)) == id(number)
    made: Any = Builder(mode).build(Describer().describe(fake))
    assert made.item_memo.node.expr == number.node.expr
    # What the graph itself finds out is not known before.
    fake.item_memo = mode.shape_env.create_unbacked_symint()
    assert tensors.item_of(fake) is None


class Subclass(torch.Tensor):
    pass


UNUSUAL: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "subclass": (lambda: torch.ones(2).as_subclass(Subclass), "subclass Subclass"),
    "sparse": (lambda: torch.ones(2).to_sparse(), "layout torch.sparse_coo"),
    "mkldnn": (lambda: torch.ones(2).to_mkldnn(), "layout torch._mkldnn"),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_tensor_that_is_more_than_memory_is_refused(name: str) -> None:
    make, words = UNUSUAL[name]
    if name == "mkldnn" and not torch.backends.mkldnn.is_available():
        pytest.skip("this build has no oneDNN")
    with pytest.raises(UnsupportedTensor, match=words):
        Describer().describe(make())


def test_a_tensor_of_a_transform_is_refused() -> None:
    refused: list[str] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        try:
            tensors.refuse_unusual(x)
        except UnsupportedTensor as error:
            refused.append(str(error))
        return x

    torch.func.vmap(look)(torch.ones(2, 3))
    assert refused == ["functorch or functionalization wrapper"]


def test_a_packed_constant_is_packed_again() -> None:
    plain = torch.arange(6.0).reshape(2, 3)
    assert tensors.to_travel(plain) is plain and tensors.travelled(plain) is plain
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build has no oneDNN")
    sent = tensors.to_travel(plain.to_mkldnn())
    assert isinstance(sent, tensors.PackedTensor)
    arrived = tensors.travelled(pickle.loads(pickle.dumps(sent)))
    assert arrived.is_mkldnn and torch.equal(arrived.to_dense(), plain)


def test_plain_fakes_are_told_from_subclasses() -> None:
    with FakeTensorMode() as mode:
        fake = torch.ones(2)
        parameter = torch.nn.Parameter(torch.ones(2))
    real = torch.ones(2)
    assert [tensors.is_fake(one) for one in (fake, parameter, real, 1)] == [True, True, False, False]
    assert [tensors.is_plain_fake(one) for one in (fake, parameter, real)] == [True, True, False]
    assert tensors.fake_mode_of(fake) is mode


def test_a_mode_for_compiling_takes_real_constants() -> None:
    env = ShapeEnv()
    mode = tensors.new_fake_mode(env)
    assert mode.shape_env is env
    with mode:
        assert tensors.is_fake(torch.ones(2) + mode.from_tensor(torch.ones(2)))
    outside = torch.ones(2)
    with mode:
        assert tensors.is_fake(outside + 1)
        with tensors.modes_disabled():
            assert torch.equal(outside + 1, torch.full((2,), 2.0))


def test_questions_about_sizes_make_no_guards_meanwhile() -> None:
    fake = symbolic(torch.ones(3, 5))
    env = fake.fake_mode.shape_env
    before = len(env.guards)
    with tensors.no_new_guards(fake):
        assert fake.shape[0] < 4
    assert len(env.guards) == before
    assert fake.shape[0] < 4
    assert len(env.guards) == before + 1
    with FakeTensorMode():
        static = torch.ones(2)
    with tensors.no_new_guards(static):  # its mode has no symbols
        assert static.shape[0] == 2
