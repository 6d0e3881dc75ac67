"""Every private name of torch's and Triton's that `fxpool.torch_compat` uses is there in this release, as expected.

docs/architecture/torch-names.md lists the names with the releases that have them; `docs/compat_report.py` finds them in
the sources and looks them up. Names of objects that only exist at run time are in tables here.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fxpool.torch_compat import versions

RELEASE = versions.parse(torch.__version__)
# Names that only builds for CUDA have; the page's builds are of both kinds.
OF_CUDA_BUILDS = ("torch._C._StaticCudaLauncher.", "torch._C._cuda_")


def _script() -> Any:
    path = Path(__file__).parents[2] / "docs" / "compat_report.py"
    spec = importlib.util.spec_from_file_location("compat_report_of_names", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


report = _script()


def _page() -> tuple[list[tuple[int, int]], dict[str, list[bool]]]:
    """Return the page's releases, and for each name whether each of them has it."""
    text = report.PAGE.read_text(encoding="utf-8")
    head = re.search(r"^\| name \|(.+)\| used in \|$", text, re.MULTILINE)
    assert head is not None
    releases = [versions.parse(cell.strip()) for cell in head[1].split("|")]
    known = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            name, *marks = [cell.strip() for cell in line.strip("|").split("|")][: len(releases) + 1]
            known[name.strip("`")] = [mark != "·" for mark in marks]
    return releases, known


RELEASES, KNOWN = _page()
USED: dict[str, list[str]] = report.names_used()
# A release that is not on the page has to have what the newest on it has.
COLUMN = RELEASES.index(RELEASE) if RELEASE in RELEASES else len(RELEASES) - 1
EXPECTED = {name for name, there in KNOWN.items() if there[COLUMN] and not name.startswith(OF_CUDA_BUILDS)}
MODULES = sorted({module for modules in USED.values() for module in modules})
# In some releases only; a name in none is an attribute of an object, which the page can't see.
VARYING = sorted(
    name
    for name, there in KNOWN.items()
    if any(there) and not all(there) and not name.startswith((*OF_CUDA_BUILDS, "triton."))
)


def is_there(name: str) -> bool:
    """Return whether a dotted name leads to something, through modules that are imported for it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        try:
            for part in parts[count:]:
                # From a class as it stands there: a property would be read, a class method be bound.
                found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def test_the_page_is_read() -> None:
    assert RELEASES[0] == versions.OLDEST and RELEASES[-1] == versions.NEWEST
    assert KNOWN["torch._inductor.compile_fx.compile_fx"] == [True] * len(RELEASES)
    assert KNOWN["torch._inductor.fx_passes.pad_mm.hint_symbols"][0] is False
    assert len(EXPECTED) > 300 and "operators/registrations" in MODULES


@pytest.mark.parametrize("module", MODULES)
def test_names_that_a_module_uses_are_there(module: str) -> None:
    """Triton's own are looked up in a process that has Triton: `test_compat_triton.py`."""
    names = [name for name, modules in USED.items() if module in modules and name in EXPECTED]
    assert [name for name in names if not name.startswith("triton.") and not is_there(name)] == []


@pytest.mark.parametrize("name", VARYING)
def test_a_name_of_some_releases_is_there_in_those(name: str) -> None:
    if RELEASE not in RELEASES:
        pytest.skip(f"docs/architecture/torch-names.md does not have torch {torch.__version__}: make compat-report")
    assert is_there(name) == KNOWN[name][COLUMN]


def test_bindings_for_devices_are_there_in_builds_for_cuda() -> None:
    launcher = [f"torch._C._StaticCudaLauncher.{name}" for name in ("_load_kernel", "_launch_kernel")]
    for name in [*launcher, "torch._C._cuda_getCurrentRawStream"]:
        assert name in USED
        if torch.version.hip is None:
            assert is_there(name) == (torch.version.cuda is not None)


# (module, path to the owner, attribute): names that the page can't see, because they are looked up in `sys.modules` or
# in an object, or come from a table. All supported releases have them.
ATTRIBUTES = [
    ("torch._decomp", "", "global_decomposition_table"),
    ("torch._dynamo.backends.registry", "", "_COMPILER_FNS"),
    ("torch._dynamo.config", "", "caching_precompile"),
    ("torch._dynamo.symbolic_convert", "InstructionTranslator", "current_tx"),
    ("torch._functorch.config", "", "_sync_decision_cross_ranks"),
    ("torch._functorch.config", "", "bypass_autograd_cache_key"),
    ("torch._inductor.codecache", "PersistentCache", "lookup"),
    ("torch._inductor.codegen.common", "", "custom_backend_passes"),
    ("torch._inductor.codegen.common", "", "device_codegens"),
    ("torch._inductor.compile_fx", "", "fx_compile_async"),
    ("torch._inductor.compile_fx", "", "fx_compile_progressive"),
    ("torch._inductor.decomposition", "", "decompositions"),
    ("torch._inductor.decomposition", "", "extra_random_decomps"),
    ("torch._inductor.decomposition", "fast_random_decomps", "cache_clear"),
    ("torch._inductor.graph", "GraphLowering", "save_output_code"),
    ("torch._inductor.lowering", "", "_maybe_layout_constraints"),
    ("torch._inductor.lowering", "", "fallbacks"),
    ("torch._inductor.lowering", "", "lowerings"),
    ("torch._inductor.output_code", "CompiledFxGraph", "prepare_for_serialization"),
    ("torch._inductor.pattern_matcher", "", "PatternMatcherPass"),
    ("torch._inductor.select_algorithm", "", "_ALGORITHM_SELECTOR_CACHE"),
    ("torch._inductor.utils", "", "_unstable_customized_partition_wrapper"),
    ("torch._subclasses.fake_tensor", "FakeTensorMode", "cache_clear"),
    ("torch.utils._debug_mode", "", "get_active_debug_mode"),
    ("torch.utils.checkpoint", "", "_enable_checkpoint_early_stop"),
]


@pytest.mark.parametrize(("module", "owner", "name"), ATTRIBUTES, ids=lambda value: value.removeprefix("torch.") or "-")
def test_an_attribute_that_is_looked_up_at_run_time_is_there(module: str, owner: str, name: str) -> None:
    found: Any = importlib.import_module(module)
    if owner:
        found = getattr(found, owner)
    # A configuration makes its entries up from a table.
    there = name in found._config if isinstance(getattr(found, "_config", None), dict) else hasattr(found, name)
    assert there


# What torch calls that fxpool puts a function of its own in the place of: the first parameters, which both take.
REPLACED = [
    ("torch._dynamo.eval_frame", "get_compiler_fn", ["compiler_fn"]),
    ("torch._inductor.async_compile", "AsyncCompile.cpp_pybinding", ["self", "argtypes", "source_code"]),
    ("torch._inductor.async_compile", "AsyncCompile.wait", ["self", "scope"]),
    ("torch._inductor.async_compile", "AsyncCompile.triton", ["self", "kernel_name", "source_code", "device_str"]),
    ("torch._inductor.async_compile", "AsyncCompile.cpp", ["self", "source_code"]),
    ("torch._inductor.async_compile", "AsyncCompile.halide", ["self", "meta", "source_code"]),
    ("torch._inductor.async_compile", "AsyncCompile.cuda", ["self", "source_code", "dst_file_ext", "aot_compile"]),
    ("torch._inductor.async_compile", "AsyncCompile.rocm", ["self", "source_code", "dst_file_ext", "aot_compile"]),
    ("torch._inductor.codecache", "CUDACodeCache.compile", ["source_code", "dst_file_ext", "extra_args"]),
    ("torch._inductor.codecache", "ROCmCodeCache.compile", ["source_code", "dst_file_ext", "extra_args"]),
    ("torch._inductor.codecache", "PyCodeCache.load_by_key_path", ["key", "path"]),
    (
        "torch._inductor.codecache",
        "PersistentCache.lookup",
        ["self", "choices", "op", "inputs", "benchmark", "hint_override"],
    ),
    ("torch._inductor.codegen.wrapper", "PythonWrapperCodegen.define_kernel", ["self", "kernel_name", "kernel_body"]),
    ("torch._inductor.fx_passes.pad_mm", "should_pad_bench_key", ["match", "mat1", "mat2", "op", "input"]),
    ("torch._inductor.fx_passes.pad_mm", "get_cached_should_pad", ["key"]),
    ("torch._inductor.fx_passes.pad_mm", "set_cached_should_pad", ["key", "value"]),
    ("torch._inductor.fx_passes.pad_mm", "get_cached_base_mm_benchmark_time", ["key"]),
    ("torch._inductor.fx_passes.pad_mm", "set_cached_base_mm_benchmark_time", ["key", "value"]),
    ("torch._inductor.fx_passes.pad_mm", "should_exclude_padding_time", ["match", "arg_name"]),
    ("torch._inductor.select_algorithm", "AlgorithmSelectorCache.make_precompile_fn", ["self", "choices"]),
    (
        "torch._inductor.select_algorithm",
        "AlgorithmSelectorCache.make_benchmark_fn",
        ["choices", "input_nodes", "layout", "input_gen_fns"],
    ),
    ("torch._inductor.scheduler", "Scheduler.compile_kernel", ["self", "nodes", "hint_override"]),
    (
        "torch._inductor.codegen.triton",
        "TritonScheduling.benchmark_fused_nodes",
        ["self", "nodes", "n_spills_threshold"],
    ),
    (
        "torch._inductor.codegen.triton",
        "TritonScheduling.benchmark_codegened_module",
        ["self", "mod", "n_spills_threshold", "node_names"],
    ),
    ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache.save", ["key", "entry", "remote"]),
    ("torch._logging", "trace_structured", ["name", "metadata_fn"]),
    ("torch._inductor.runtime.triton_heuristics", "CachingAutotuner._make_launchers", ["self"]),
    ("torch._inductor.compile_fx", "compile_fx", ["model_", "example_inputs_", "inner_compile", "config_patches"]),
]


# Left alone where a release has no such name.
IF_THERE = ("AsyncCompile.cuda", "AsyncCompile.rocm", "CUDACodeCache.compile", "ROCmCodeCache.compile")


@pytest.mark.parametrize(("module", "path", "parameters"), REPLACED, ids=lambda value: str(value).rpartition(".")[2])
def test_torch_calls_what_is_replaced_as_before(module: str, path: str, parameters: list[str]) -> None:
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        if path in IF_THERE and not hasattr(found, part):
            pytest.skip(f"torch {torch.__version__} has no {path}")
        found = getattr(found, part)
    assert list(inspect.signature(found).parameters)[: len(parameters)] == parameters
