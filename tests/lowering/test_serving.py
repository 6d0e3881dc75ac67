"""Programs that call Inductor directly, as inference engines do, after ``fxpool.install()``."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.children import Children
from harness.places import with_tests
from processes import HERE, run_python
from serving_pieces import PIECES

import fxpool
from fxpool import config
from fxpool.errors import ConfigurationError
from fxpool.torch_compat.inductor import hooks

RANKS = 4
#: Each piece is compiled for two ranges of sizes.
GRAPHS = 2 * PIECES


# --- an engine's processes ---------------------------------------------------------------------------


class Engine:
    """Starts of an engine: `RANKS` processes each, which begin to compile together."""

    def __init__(self, directory: Path, **order: Any) -> None:
        self._directory, self._asked = directory, order
        self._starts = 0

    def start(self, where: str) -> list[dict[str, Any]]:
        """Return the reports of the processes, whose files are in the directory `where`."""
        self._starts += 1
        directory = self._directory / where
        directory.mkdir(exist_ok=True)
        environment = {**os.environ, "FXPOOL_INSTALL": "1", "FXPOOL_IDLE_TIMEOUT": "20"}
        environment["PYTHONPATH"] = with_tests(environment.get("PYTHONPATH"))

        def run(rank: int) -> dict[str, Any]:
            order = {"rank": rank, "of": RANKS, "start": self._starts, "directory": str(directory), **self._asked}
            order["noted"] = str(self._directory / "noted")
            return Children().result([str(HERE / "serving_child.py"), json.dumps(order)], environment, f"rank {rank}")

        reports = [*Children().each(run, range(RANKS), RANKS)]
        assert [report["right"] for report in reports] == [[True] * 3] * RANKS
        assert [report["lowerings"] for report in reports] == [0] * RANKS, "a graph was lowered in a rank's process"
        return reports

    def lowered(self) -> int:
        """Return how many graphs were lowered in all starts, by the worker's own notes."""
        return len((self._directory / "noted").read_text().splitlines())


def counted(reports: Sequence[dict[str, Any]]) -> dict[str, int]:
    stats = [report["stats"] for report in reports]
    assert not any(one["fallbacks"] or one["bypasses"] or one["compiles"]["in_process"] for one in stats)
    found = {name: sum(one[name] for one in stats) for name in ("hits", "misses", "guard_misses", "joined")}
    return {**found, "worker": sum(one["compiles"]["worker"] for one in stats)}


@pytest.mark.slow
@pytest.mark.parametrize("order", [{"format": "unpacked"}, {"format": "binary", "aot": True}], ids=["unpacked", "aot"])
def test_ranks_compile_each_piece_once_and_later_starts_nothing(
    order: dict[str, Any], cache: Path, tmp_path: Path
) -> None:
    engine = Engine(tmp_path, **order)
    first = engine.start("host")
    kind = "AOTCompiledArtifact" if order.get("aot") else "CacheCompiledArtifact"
    assert all(report["log"] == [[kind, True]] * GRAPHS for report in first)
    assert engine.lowered() == GRAPHS, "each piece is compiled once on the host"
    counts = counted(first)
    assert counts["worker"] == GRAPHS
    assert counts["joined"] + counts["hits"] == (RANKS - 1) * GRAPHS
    assert counts["hits"] + counts["misses"] == RANKS * GRAPHS

    second = engine.start("host")
    assert all(report["log"] == ["loaded"] * GRAPHS for report in second)
    assert set(counted(second).values()) == {0}

    third = engine.start("pod")  # without the engine's files, with fxpool's cache
    assert all(report["log"] == [[kind, True]] * GRAPHS for report in third)
    assert counted(third) == {"hits": RANKS * GRAPHS, "misses": 0, "guard_misses": 0, "joined": 0, "worker": 0}
    assert engine.lowered() == GRAPHS


# --- calls of Inductor -------------------------------------------------------------------------------


@pytest.fixture
def installed(shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """fxpool is installed, and torch has cached nothing."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    fxpool.install()
    yield
    fxpool.uninstall()
    torch._dynamo.reset()


def weighted(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x @ w).relu() + 1, x.sum()


W = torch.linspace(-1, 1, 64).reshape(8, 8)


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph that Dynamo makes of a function."""
    found: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep, fullgraph=True)(*inputs)
    return found[0]


def standalone(function: Callable[..., Any], *inputs: torch.Tensor, **wanted: Any) -> Any:
    gm = traced(function, *inputs)
    return torch._inductor.standalone_compile(gm, list(inputs), dynamic_shapes="from_example_inputs", **wanted)


def of_this_process() -> dict[str, Any]:
    stats = fxpool.stats()
    return {name: stats[name] for name in ("hits", "misses", "compiles", "fallbacks")}


COMPILED = {"hits": 0, "misses": 1, "compiles": {"worker": 1, "in_process": 0}, "fallbacks": {}}


@pytest.mark.usefixtures("installed", "nothing_lowered_here")
def test_an_artifact_is_torchs_own_and_its_code_comes_from_a_worker(tmp_path: Path) -> None:
    from torch._inductor.standalone_compile import CacheCompiledArtifact, CompiledArtifact

    x = torch.randn(4, 8)
    with torch.no_grad():
        made = standalone(weighted, x, W)
        assert isinstance(made, CompiledArtifact) and type(made) is CacheCompiledArtifact and made.is_saveable()
        torch.testing.assert_close([*made(x, W)], [*weighted(x, W)])
        assert of_this_process() == COMPILED
        for format in ("binary", "unpacked"):
            path = str(tmp_path / format)
            made.save(path=path, format=format)
            loaded = torch._inductor.CompiledArtifact.load(path=path, format=format)
            torch.testing.assert_close([*loaded(x, W)], [*weighted(x, W)])
    assert of_this_process() == COMPILED


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_what_is_edited_in_an_unpacked_artifact_runs(tmp_path: Path) -> None:
    x, path = torch.randn(4, 8), tmp_path / "unpacked"
    with torch.no_grad():
        standalone(lambda x: x.relu() + 1, x).save(path=str(path), format="unpacked")
        (source,) = [file for file in path.rglob("*.py") if "def call" in file.read_text()]
        text = source.read_text()
        assert "static_cast<float>(1.0)" in text
        source.write_text(text.replace("static_cast<float>(1.0)", "static_cast<float>(5.0)"))
        loaded = torch._inductor.CompiledArtifact.load(path=str(path), format="unpacked")
        torch.testing.assert_close(loaded(x)[0], x.relu() + 5)
    assert fxpool.stats()["fallbacks"] == {"loader:edited": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("installed", "nothing_lowered_here")
def test_a_backward_belongs_to_its_artifact() -> None:
    x, w = torch.randn(4, 8), W.clone().requires_grad_()
    made = standalone(weighted, x, w)
    (got,) = torch.autograd.grad(made(x, w)[0].sum(), w)
    (expected,) = torch.autograd.grad(weighted(x, w)[0].sum(), w)
    torch.testing.assert_close(got, expected)
    assert of_this_process() == {**COMPILED, "misses": 2, "compiles": {"worker": 2, "in_process": 0}}


@pytest.mark.slow
@pytest.mark.usefixtures("installed", "nothing_lowered_here")
def test_a_constant_is_in_the_artifact(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])

    x, path = torch.randn(8, 8), str(tmp_path / "artifact")
    with torch.no_grad():
        standalone(function, x).save(path=path)
        loaded = torch._inductor.CompiledArtifact.load(path=path)
        torch.testing.assert_close(loaded(x)[0], function(x))
    assert of_this_process() == COMPILED


@pytest.mark.usefixtures("installed", "nothing_lowered_here")
def test_an_inner_compile_meets_torchs_hash_file_and_lookup(tmp_path: Path) -> None:
    """The contract of adaptors that hold a hash of torch's, and load by it later."""
    from torch._dynamo.utils import dynamo_timed, get_metrics_context
    from torch._functorch import config as functorch_config
    from torch._inductor import compile_fx
    from torch._inductor.codecache import FxGraphCache
    from torch._inductor.output_code import CompiledFxGraphConstantsWithGm

    x, seen = torch.randn(4, 8), []
    gm = traced(weighted, x, W)

    def inner(*args: Any, **arguments: Any) -> Any:
        graph: Any = compile_fx.compile_fx_inner(*args, **arguments)
        files = [graph.current_callable.__code__.co_filename]
        for cell in graph.current_callable.__closure__ or ():
            files += [cell.cell_contents.__code__.co_filename] if callable(cell.cell_contents) else []
        seen.append((graph._fx_graph_cache_key, files))
        return graph

    mode = torch._subclasses.FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())
    context = torch._guards.TracingContext(mode)  # torch caches no graph without symbolic shapes
    with torch.no_grad(), functorch_config.patch(enable_autograd_cache=False):
        with torch._guards.tracing(context):
            made = compile_fx.compile_fx(gm, [x, W], inner_compile=inner, config_patches={"fx_graph_cache": True})
        torch.testing.assert_close([*made(x, W)], [*weighted(x, W)])
        assert of_this_process() == COMPILED
        ((hash, files),) = seen
        (path,) = [file for file in files if file.startswith(str(tmp_path / "inductor"))]
        assert "def call" in Path(path).read_text()
        timed = dynamo_timed("load", log_pt2_compile_event=True)
        with torch._guards.tracing(context), get_metrics_context(), timed:
            graph, _ = FxGraphCache._lookup_graph(hash, [x, W], True, None, CompiledFxGraphConstantsWithGm(gm))
        assert graph is not None
        torch.testing.assert_close([*graph([x, W])], [*weighted(x, W)])


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_without_a_pool_an_artifact_is_made_here_unless_strict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fxpool.errors import PoolUnavailableError
    from fxpool.lowering.compiling import remote

    def refuse(*_: Any) -> Any:
        raise PoolUnavailableError("the server is away")

    monkeypatch.setattr(remote, "results", refuse)
    x = torch.randn(4, 8)
    with torch.no_grad():
        fxpool.configure(strict=True)
        with pytest.raises(Exception, match="the server is away"):
            standalone(weighted, x, W)
        fxpool.configure(strict=None)
        with pytest.warns(RuntimeWarning, match="the server is away"):
            made = standalone(weighted, x, W)
        made.save(path=str(tmp_path / "artifact"))
        loaded = torch._inductor.CompiledArtifact.load(path=str(tmp_path / "artifact"))
        torch.testing.assert_close([*loaded(x, W)], [*weighted(x, W)])
    assert fxpool.stats()["fallbacks"] == {"fx:pool:PoolUnavailableError": 1}
    assert fxpool.stats()["compiles"] == {"worker": 0, "in_process": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_own_decompositions_stay_in_the_process() -> None:
    from torch._inductor import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    x = torch.randn(4, 8)
    with torch.no_grad():
        made = compile_fx.compile_fx(traced(weighted, x, W), [x, W], decompositions=select_decomp_table())
        torch.testing.assert_close([*made(x, W)], [*weighted(x, W)])
    assert fxpool.stats()["fallbacks"] == {"fx:decompositions": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_graph_that_kills_its_workers_is_an_error() -> None:
    from deadly import deadly

    x = torch.randn(4, 8)
    with torch.no_grad(), pytest.raises(Exception, match="WorkerDiedError"):
        standalone(lambda x: deadly(x.sin(), "kill"), x)
    assert fxpool.stats()["compiles"] == {"worker": 0, "in_process": 0}


# --- code of torch's that an engine replaces ---------------------------------------------------------

ENGINE = {
    "__init__.py": "import vllm.changes\n",
    "changes.py": """
class Allowed:
    def __init__(self, inner):
        self._inner = inner

    def __contains__(self, item):
        return item in self._inner or (isinstance(item, str) and item.startswith("toy::"))

    def __getattr__(self, name):
        return getattr(self._inner, name)


def change():
    from torch._inductor import graph, lowering, pattern_matcher

    original = pattern_matcher.fallback_node_due_to_unsupported_type

    def replaced(node, allow_cpu_inputs=True):
        return original(node, allow_cpu_inputs)

    pattern_matcher.fallback_node_due_to_unsupported_type = replaced
    lowering.FALLBACK_ALLOW_LIST = graph.FALLBACK_ALLOW_LIST = Allowed(lowering.FALLBACK_ALLOW_LIST)


change()
""",
}
CHANGED = """
import json, torch, fxpool
import torch._inductor.graph, torch._inductor.pattern_matcher
import vllm
fxpool.install()
if {later}:
    torch._inductor.lowering.FALLBACK_ALLOW_LIST.add("toy::more")
found = []
x = torch.randn(4, 8)
torch.compile(lambda x: x.relu() + 1, backend=lambda gm, inputs: found.append(gm) or gm.forward)(x)
with torch.no_grad():
    made = torch._inductor.standalone_compile(found[0], [x], dynamic_shapes="from_example_inputs")
    assert torch.allclose(made(x)[0], x.relu() + 1)
stats = fxpool.stats()
print(json.dumps([stats["compiles"], stats["fallbacks"]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("later", [False, True])
def test_workers_replace_code_of_torchs_as_the_import_of_the_engine_does(
    later: bool, cache: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site-packages"
    (site / "vllm").mkdir(parents=True)
    for name, text in ENGINE.items():
        (site / "vllm" / name).write_text(text)
    out = run_python(
        ["-W", "ignore", "-c", CHANGED.format(later=later)],
        PYTHONPATH=f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"),
        FXPOOL_POOL="embedded",
    )
    compiles, fallbacks = json.loads(out.splitlines()[-1])
    if later:  # no import does that
        assert (compiles, fallbacks) == ({"worker": 0, "in_process": 1}, {"fx:code_differs": 1})
    else:
        assert (compiles, fallbacks) == ({"worker": 1, "in_process": 0}, {})


# --- adaptor classes of engines ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_adaptor_classes_compile_in_workers_and_load(engine: str, cache: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed: its wheels are for machines with a GPU")

    def run() -> dict[str, Any]:
        out = run_python(
            [str(HERE / "serving_adaptors.py"), engine, str(tmp_path)],
            FXPOOL_INSTALL="1",
            FXPOOL_POOL="embedded",
            TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"),
            VLLM_USE_MEGA_AOT_ARTIFACT="0",  # one artifact saves all pieces
        )
        report: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert (report["lowerings"], report["fallbacks"], report["bypasses"]) == (0, {}, {})
        return report

    first = run()
    assert set(first["states"].values()) == {"compiled"}
    assert first["compiles"] == {"worker": first["misses"], "in_process": 0} and first["misses"] > 0
    second = run()
    assert set(second["states"].values()) == {"loaded"}
    assert (second["hits"], second["misses"]) == (0, 0)


# --- the plugin --------------------------------------------------------------------------------------

UNSET = "import sys; from fxpool.lowering.inductor import engine_plugin as p; before = {*sys.modules}; p.install(); "


def test_the_plugin_does_nothing_unless_asked() -> None:
    said = "print([*{*sys.modules} - before], 'torch' in sys.modules)"
    for value in ("", "0", "off"):
        assert run_python(["-c", UNSET + said], FXPOOL_INSTALL=value).split() == ["[]", "False"]
    out = run_python(
        ["-c", UNSET + "print('torch' in sys.modules, 'fxpool.config' in sys.modules)"], FXPOOL_INSTALL="1"
    )
    assert out.split() == ["False", "False"]


PLUGIN = """
import warnings
warnings.simplefilter("always")
from fxpool.lowering.inductor import engine_plugin
with warnings.catch_warnings(record=True) as said:
    engine_plugin.install()
    import torch._inductor.compile_fx
    engine_plugin.install()
from fxpool.torch_compat.inductor import hooks
print([str(one.message) for one in said if "FXPOOL" in str(one.message)], hooks.installed())
"""


@pytest.mark.slow
def test_the_plugin_installs_when_inductor_is_imported_and_never_raises() -> None:
    assert run_python(["-c", PLUGIN], FXPOOL_INSTALL="1").split() == ["[]", "True"]
    for wrong in ({"FXPOOL_INSTALL": "maybe"}, {"FXPOOL_INSTALL": "1", "FXPOOL_WORKERS": "many"}):
        said, _, is_installed = run_python(["-c", PLUGIN], **wrong).strip().rpartition(" ")
        assert is_installed == "False"
        assert said.count("FXPOOL_INSTALL has no effect, stock Inductor compiles in this process: ") == 1


def test_the_entry_points_name_the_plugin() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("tomllib is new in Python 3.11")
    import tomllib

    from fxpool.lowering.inductor import engine_plugin

    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())["project"]
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        module, _, name = project["entry-points"][group]["fxpool"].partition(":")
        assert (module, name) == (engine_plugin.__name__, "install")
    assert any(one.startswith("vllm") for one in project["optional-dependencies"]["vllm"])


def test_the_variable_of_the_plugin_is_no_misspelt_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_INSTALL", "1")
    config.current()
    monkeypatch.setenv("FXPOOL_INSTALLL", "1")
    with pytest.raises(ConfigurationError, match="FXPOOL_INSTALL"):
        config.current()
    assert not hooks.installed()
