"""`hooks` takes over the work that stock Inductor gives to processes of its own, and gives it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fxpool.torch_compat.cpp.instruction_sets import instruction_sets_known
from fxpool.torch_compat.dynamo import tracing
from fxpool.torch_compat.inductor import aot, hooks
from fxpool.torch_compat.inductor.hooks import NotBorrowedError


class Kernels:
    """Takes Inductor's kernels, and compiles none."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def submit(self, function: Any, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked.append(function)
        future: Future[Any] = Future()
        future.set_result(hooks.READY)
        return future

    def wakeup(self) -> None:
        self.asked.append("wakeup")

    def quiesce(self) -> None: ...

    def shutdown(self) -> None: ...


class Graphs:
    """Compiles Inductor's graphs as a worker does, in this process, unless it is to refuse."""

    def __init__(self) -> None:
        self.compiled: list[Mapping[str, Any]] = []
        self.stayed: list[tuple[str, str]] = []
        self.refuses = False

    def compile(self, graph: bytes, dependencies: Mapping[str, Any]) -> bytes:
        if self.refuses:
            raise NotBorrowedError
        self.compiled.append(dependencies)
        return hooks.compile_graph(graph)

    def kept_here(self, reason: str, detail: str) -> None:
        self.stayed.append((reason, detail))

    def compile_later(self, graph: bytes, dependencies: Mapping[str, Any]) -> Future[bytes]:
        future: Future[bytes] = Future()
        future.set_result(self.compile(graph, dependencies))
        return future


class Begun:
    def __init__(self) -> None:
        self.graphs: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, gm: Any, inputs: Any, /, *, mode: str, options: Mapping[str, Any]) -> Any:
        self.graphs.append((mode, options))
        return gm


class Direct:
    """Notes each graph of a direct call, and has torch compile it."""

    def __init__(self) -> None:
        self.graphs: list[tuple[bool, bool]] = []

    def __call__(self, gm: Any, inputs: Any, arguments: Any, stock: Any, decomposed: bool, /) -> Any:
        self.graphs.append((bool(arguments.get("is_backward")), decomposed))
        return stock()


@pytest.fixture
def parts() -> Iterator[tuple[Kernels, Graphs, Begun, Direct]]:
    if hooks.installed():
        hooks.uninstall()
    made = Kernels(), Graphs(), Begun(), Direct()
    with instruction_sets_known([]):
        assert hooks.install(*made)
        yield made
        hooks.uninstall()
    torch._dynamo.reset()


def places() -> list[Any]:
    from torch._inductor import compile_fx
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_fx_subproc import _SubprocessFxCompile

    names = ("process_pool", "wakeup", "get_worker_pool", "should_use_thread_workers")
    found = [vars(AsyncCompile).get(name) for name in names]
    names = ("codegen_and_compile", "serialize_compile", "_send_to_child", "_send_to_child_async")
    return [*found, *(vars(_SubprocessFxCompile).get(name) for name in names), compile_fx.compile_fx,
            compile_fx.fx_codegen_and_compile]  # fmt: skip


def test_inductor_s_own_parts_are_replaced_once_and_put_back() -> None:
    assert not hooks.installed()
    before = places()
    made = Kernels(), Graphs(), Begun(), Direct()
    assert hooks.install(*made) and hooks.installed()
    assert hooks.install(*made) is False
    changed = [now is not then for now, then in zip(places(), before, strict=True) if then is not None]
    assert all(changed)
    hooks.uninstall()
    assert places() == before and not hooks.installed()


def test_kernels_are_submitted_to_this_pool(parts: Any) -> None:
    from torch._inductor.async_compile import AsyncCompile

    kernels = parts[0]
    assert AsyncCompile.process_pool() is kernels
    AsyncCompile.process_pool.cache_clear()  # torch does so in a child
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncCompile, "use_process_pool", classmethod(lambda cls: True))
        AsyncCompile.wakeup()
    assert kernels.asked == ["wakeup"]
    assert hooks.is_question(AsyncCompile._get_ready) and not hooks.is_question(print)
    assert AsyncCompile._get_ready() == hooks.READY


def test_kernels_that_ask_no_device_are_known() -> None:
    from torch._inductor.async_compile import _worker_compile_triton

    assert hooks.compiles_only(_worker_compile_triton) is (torch.version.hip is None)
    assert not hooks.compiles_only(print)


def compile_product(mode: Any) -> Any:
    """Have Inductor compile a product (ATen's: no kernel) in one of its modes."""
    from torch._inductor import compile_fx

    x, w = torch.randn(3, 4), torch.randn(4, 5)
    gm = make_fx(lambda x, w: (x @ w,), tracing_mode="fake")(x, w)
    fakes = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    with pytest.MonkeyPatch.context() as patch, tracing.worker_context(fakes[0].fake_mode, None):
        patch.setattr(compile_fx, "fx_compile_mode", mode)
        with torch._inductor.config.patch(fx_graph_cache=False, force_disable_caches=True):
            call = compile_fx.compile_fx_inner(gm, fakes, is_inference=True, cudagraphs=_no_cudagraphs())
    (result,) = call([x, w])
    torch.testing.assert_close(result, x @ w)


def _no_cudagraphs() -> Any:
    from torch._inductor.utils import BoxedBool

    return BoxedBool(False)


@pytest.mark.filterwarnings("ignore:torch._inductor.config:FutureWarning")  # torch 2.15's process warns of its options
def test_a_graph_for_inductor_s_process_is_sent_here(parts: Any) -> None:
    from torch._inductor.compile_fx import FxCompileMode

    compile_product(FxCompileMode.SUBPROCESS)
    assert parts[1].compiled == [{}] and parts[1].stayed == []


def test_a_graph_that_is_refused_is_compiled_in_this_process(parts: Any) -> None:
    from torch._inductor.compile_fx import FxCompileMode

    parts[1].refuses = True
    compile_product(FxCompileMode.SUBPROCESS)
    assert parts[1].compiled == []


def test_a_dynamo_graph_in_a_background_mode_is_begun(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "fx_compile_mode", compile_fx.FxCompileMode.SUBPROCESS)
    assert hooks.compile_mode() == "subprocess"
    monkeypatch.setattr(compile_fx, "fx_compile_async", True)
    compile_fx.compile_fx("graph", [], config_patches={"max_autotune": True})
    monkeypatch.setattr(compile_fx, "fx_compile_progressive", True)
    assert compile_fx.compile_fx("graph", []) == "graph"
    assert parts[2].graphs == [
        ("async+subprocess", {"max_autotune": True}), ("progressive+async+subprocess", {})
    ]  # fmt: skip
    monkeypatch.setattr(compile_fx, "fx_compile_mode", compile_fx.FxCompileMode.NORMAL)
    assert hooks.compile_mode() == ""


def test_a_dynamo_graph_for_a_worker_is_begun_if_that_is_asked_for(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    hooks.uninstall()
    asked: list[bool] = []
    assert hooks.install(parts[0], parts[1], parts[2], parts[3], lambda: bool(asked))
    monkeypatch.setattr(compile_fx, "fx_compile_mode", compile_fx.FxCompileMode.SUBPROCESS)
    asked.append(True)
    assert compile_fx.compile_fx("graph", []) == "graph"
    assert parts[2].graphs == [("subprocess", {})]
    backend = torch._TorchCompileInductorWrapper(None, {"max_autotune": True}, None)
    assert hooks.options_of(backend) == {"max_autotune": True}
    assert hooks.options_of(torch._TorchCompileAOTInductorWrapper(None, None, None)) is None
    hooks.uninstall()
    assert hooks.options_of(backend) is None


def test_why_torch_does_not_send_a_graph_is_told() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x.sin())
    assert hooks._why_unsent(gm, [TypeError("can't pickle it")]) == ("not_picklable", "TypeError: can't pickle it")
    assert hooks._why_unsent(gm, []) == ("not_sent", "torch does not say why")


def test_operators_of_the_program_are_found_in_nested_graphs() -> None:
    library = torch.library.Library("compat_hooks", "FRAGMENT")
    try:
        library.define("mine(Tensor x) -> Tensor")
        mine = torch.ops.compat_hooks.mine.default
        inner = torch.fx.Graph()
        inner.output(inner.call_function(mine, (inner.placeholder("x"),)))
        root = torch.nn.Module()
        root.body = torch.fx.GraphModule(torch.nn.Module(), inner)
        outer = torch.fx.Graph()
        x = outer.placeholder("x")
        outer.output(outer.call_module("body", (outer.call_function(torch.ops.aten.sin.default, (x,)),)))
        gm = torch.fx.GraphModule(root, outer)
        assert hooks.operators_of(gm) == {"operator:compat_hooks::mine.default": mine}
    finally:
        library._destroy()


def test_a_job_s_error_is_inductor_s() -> None:
    from torch._inductor.compile_worker.subproc_pool import SubprocException

    error = hooks.job_error("Traceback: of the job")
    assert isinstance(error, SubprocException) and "Traceback: of the job" in str(error)


def test_a_worker_s_compiles_take_so_many_threads() -> None:
    from torch._inductor import async_compile

    kernels = Kernels()
    try:
        hooks.take_in_worker(kernels, 3)
        assert async_compile.get_compile_threads() == 3 and async_compile.AsyncCompile.process_pool() is kernels
    finally:
        hooks.uninstall()
    assert async_compile.AsyncCompile.process_pool is not kernels


def test_inductor_s_directory_is_the_environment_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    from torch._inductor.runtime import cache_dir_utils

    getattr(cache_dir_utils.cache_dir, "cache_clear", lambda: None)()
    assert hooks.cache_directory() == str(tmp_path / "inductor")


def test_graphs_of_direct_calls_are_handed_on_and_others_are_not(parts: Any) -> None:
    from torch._inductor import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    direct, x = parts[3], torch.ones(2, 2)

    def call(**arguments: Any) -> Any:
        return compile_fx.compile_fx(torch.fx.symbolic_trace(lambda x: (x @ x,)), [x], **arguments)(x)[0]

    with torch.no_grad():
        call()
        with aot.in_process_only():  # fxpool's own compile
            call(inner_compile=compile_fx.compile_fx_inner)
        assert direct.graphs == []
        assert torch.equal(call(inner_compile=compile_fx.compile_fx_inner, config_patches={"debug": False}), x @ x)
        assert direct.graphs == [(False, False)], "compile_fx calls itself for its configuration: one graph"
        call(decompositions=select_decomp_table())
        assert direct.graphs[1:] == [(False, True)]
        call(ignore_shape_env=True)  # as standalone_compile calls it
        assert direct.graphs[2:] == [(False, False)]


def test_a_backward_that_is_lowered_later_belongs_to_its_call(parts: Any) -> None:
    from torch._inductor import compile_fx

    direct, x = parts[3], torch.ones(2, 2, requires_grad=True)
    compiled = compile_fx.compile_fx(torch.fx.symbolic_trace(lambda x: (x @ x,)), [x], ignore_shape_env=True)
    compiled(x)[0].sum().backward()
    assert [is_backward for is_backward, _ in direct.graphs] == [False, True]
