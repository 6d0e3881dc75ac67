"""Removals for each system of docs/architecture/systems.md, by its row: a text that is replaced by another.

A removal takes away what a row is about with as little else as one place can do, and leaves code that runs: a test
that fails of a syntax error shows nothing. It goes stale with the code it names; `test_removals` says so at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Removal:
    """Replace `old`, which is in `file` once, by `new`; each of `tests` has to fail then. Paths from the project's."""

    row: int
    file: str
    old: str
    new: str
    tests: Sequence[str]


_LOOKUP = "lowering/artifact/lookup.py"
_CHAIN = "lowering/fallback/chain.py"
_OUTPUT_CODE = "fxpool/torch_compat/inductor/output_code.py"
_GPU = "lowering/cuda/test_gpu_compiles.py"
_LIBRARIES = "        with cpp_wrappers.collecting(self._take_wrapper), source_kernels.collecting(self._take_kernel):"

REMOVALS = (
    # Installed packages are not in the key.
    Removal(1, "codecache/key/system_facts.py", "        **installed_facts(root),\n", "",
            ["lowering/test_edited_torch.py::test_an_edited_torch_is_compiled_with_and_has_a_key_of_its_own"]),
    # Headers count by name only.
    Removal(1, "codecache/key/headers.py", 'f"{name} {_content(path)}"', "name",
            ["codecache/test_headers.py::test_another_header_is_another_key"]),
    # Switches are not in the key.
    Removal(2, "codecache/key/key.py", "Component(name, _digest(name, parts[name])) for name in ORDER",
            'Component(name, _digest(name, parts[name] if name != "ambient" else "")) for name in ORDER',
            ["lowering/request/test_key_misses.py::test_state_that_shapes_code_is_in_the_key"]),
    # Every operator of a graph may be cached.
    Removal(3, "codecache/key/cacheable.py", "        reason = _refusal(node.target)", "        reason = None",
            ["codecache/test_cacheable.py::test_functions",
             "codecache/test_cacheable.py::test_higher_order_operators_as_torch_decides"]),
    # An entry with conditions is never served.
    Removal(4, _LOOKUP, "        if not side_effects.guards_hold(entry.guards, values):", "        if entry.guards:",
            ["lowering/artifact/test_shapes.py::test_guards_of_a_hit_are_added_to_the_callers_shapes",
             "lowering/artifact/test_shapes.py::test_a_guard_of_lowering_makes_a_second_entry_under_one_key"]),
    # Nothing is looked up.
    Removal(5, "lowering/compiling/graph_compile.py", "        if not self.attempt.stores:", "        if True:",
            ["lowering/artifact/test_cache_base.py::test_it_is_looked_into_first_and_never_written_to"]),
    Removal(6, "lowering/compiling/graph_compile.py", "self._fetched(again) if shared else ()", "()",
            ["lowering/artifact/test_remote_cache.py::test_two_machines_share_a_compile"]),
    Removal(7, "lowering/artifact/torch_artifacts.py",
            "    recorded = _Recorded(", "    return\n    recorded = _Recorded(",
            ["lowering/artifact/test_saved_artifacts.py::test_an_unmodified_script_hits_on_another_machine"]),
    Removal(8, "fxpool/torch_compat/dynamo/process_groups.py", "    context = get_metrics_context()\n",
            "    return 0\n    context = get_metrics_context()\n", ["lowering/artifact/test_collective_timeouts.py"]),
    # The process with the device is not asked.
    Removal(9, "lowering/cuda/benchmark_cache.py", "        if answer is None and self._ask is not None:",
            "        if False:",
            [f"{_GPU}::test_what_takes_a_clock_is_asked_and_the_answer_is_in_the_entry"]),
    # Contents are not verified when they are read.
    Removal(10, "codecache/store/blobs.py", "    if hashlib.sha256(data).hexdigest() != ref.digest:", "    if False:",
            ["codecache/test_local_store.py::test_damaged_blobs_are_set_aside_and_counted"]),
    # Inductor compiles its C++ kernels itself.
    Removal(11, "lowering/worker/compiler.py",
            "                compile_commands.collecting(self.cpp.take, self.cpp.begin),\n", "",
            ["lowering/cpp/test_cpp_wrappers.py::test_a_hit_calls_no_compiler"]),
    # The generated text is missing in tracebacks.
    Removal(12, _OUTPUT_CODE, "        linecache.cache[name] = (", "        _ = (",
            ["lowering/artifact/test_tracebacks.py::test_an_error_in_code_of_a_hit_shows_the_line_that_raised_it"]),
    Removal(13, "lowering/cuda/triton_kernels.py",
            " triton_compile.collecting(self.take) if self._submit is not None else", "",
            [f"{_GPU}::test_forward_and_backward_for_a_gpu_that_is_not_here"]),
    Removal(14, "lowering/cpp/source_builds.py", "    if store is None:\n", "    if True:\n",
            ["lowering/cpp/test_source_kernels.py::test_nvcc_runs_once_whichever_process_and_graph_asks"]),
    Removal(15, "lowering/cpp/built_libraries.py", _LIBRARIES,
            "        with cpp_wrappers.collecting(self._take_wrapper):",
            ["lowering/cpp/test_halide.py::test_a_hit_runs_neither_halide_nor_a_compiler"]),
    # A package is built in the process that asks.
    Removal(16, "lowering/packages.py", "            package = graph.look_up()",
            "            package = None",
            ["lowering/test_packages.py::test_a_package_is_built_once_and_loaded_by_torch"]),
    # The end of a job is not reported; torch keeps its own pool.
    Removal(17, "pool/client/job.py", "                self._callbacks.append(function)", "                pass",
            ["pool/test_pool_jobs.py"]),
    Removal(17, "fxpool/torch_compat/inductor/hooks.py",
            '    _patches.replace(AsyncCompile, "process_pool", staticmethod(process_pool))\n', "",
            ["lowering/test_install.py::test_jobs_of_async_compile_run_in_workers_as_their_asker_would"]),
    # Every mode waits.
    Removal(18, "lowering/fallback/dynamo_graph.py",
            "    if written or not attempt.by_workers or not (attempt.options.asynchronous or attempt.options.stages):",
            "    if True:",
            ["lowering/background/test_background.py::"
             "test_training_is_exactly_eager_before_the_swap_and_compiled_after"]),
    # Nothing is told of a compile in a worker.
    Removal(19, "fxpool/torch_compat/dynamo/compile_times.py", "    yield\n    after = _counted()",
            "    yield\n    return\n    after = _counted()",
            ["lowering/test_compile_times.py::test_a_miss_and_a_hit_are_told_as_stock_inductor_tells_them"]),
    # There are no workers.
    Removal(20, "lowering/compiling/remote.py", "    pool = runtime.pool()\n    progress = ",
            '    raise PoolUnavailableError("removed")\n    progress = ',
            ["lowering/fallback/test_failures.py::test_a_killed_worker_costs_a_retry"]),
    # A worker compiles under its own switches, configuration and passes.
    Removal(21, "lowering/worker/compiler.py",
            "    with ambient_state.entered(request.ambient), log_state", "    with log_state",
            ["lowering/request/test_configured_code.py::test_a_vouched_pass_of_the_options_runs_in_a_worker"]),
    # The wish for graphs is not passed on; nor, of one after AOTAutograd, what it was compiled with.
    Removal(22, "fxpool/torch_compat/inductor/aot_graph.py", "    arguments = dict(arguments)\n    if arguments.get",
            "    arguments = dict[str, Any]()\n    if arguments.get",
            ["lowering/artifact/test_cuda_graphs.py::test_graphs_after_autograd_are_told_too"]),
    Removal(22, "fxpool/torch_compat/inductor/aot.py",
            '            "cudagraphs": BoxedBool(inductor_config.triton.cudagraphs),',
            '            "cudagraphs": BoxedBool(False),',
            ["lowering/artifact/test_cuda_graphs.py::test_a_cpu_has_none_and_nothing_else_changes"]),
    # Code runs on memory that overlaps otherwise than it was compiled for.
    Removal(23, "lowering/artifact/load.py", "    if written:\n", "    if False:\n",
            ["lowering/request/test_overlap.py"]),
    # An entry holds the weights.
    Removal(24, "fxpool/torch_compat/inductor/output_code.py",
            "{id(tensor): number for number, tensor in enumerate(tensors)}", "dict[int, int]()",
            ["lowering/fallback/test_kept_after_autograd.py::test_frozen_weights_are_not_in_the_store"]),
    # A worker builds a package under its own configuration.
    Removal(25, "lowering/worker/packages.py", "        ambient_state.entered(request.ambient),\n", "",
            ["lowering/test_packages.py::test_what_follows_from_constants_is_split_off_where_that_is_wanted"]),
    Removal(26, "lowering/cpp/built_libraries.py", _LIBRARIES,
            "        with source_kernels.collecting(self._take_kernel):",
            ["lowering/cpp/test_cpp_wrappers.py::test_a_hit_calls_no_compiler"]),
    # A library of a GPU's keeps paths, or is taken for one of another device.
    Removal(26, "fxpool/torch_compat/cpp/cpp_wrappers.py",
            "    changed = _LOADS.sub(from_memory, source)", "    changed = source",
            ["lowering/cpp/test_embedded_kernels.py::test_a_library_finds_its_kernels_when_their_files_are_gone"]),
    Removal(26, "codecache/graph/value_encoder.py", "        if self._own_indices:", "        if False:",
            ["lowering/request/test_devices.py"
             "::test_the_worker_of_a_graph_through_cpp_sees_its_devices_under_their_own_indices"]),
    # Only Dynamo's form of a graph is known.
    Removal(27, "fxpool/torch_compat/inductor/graph_forms.py",
            "    if not isinstance(gm, torch.fx.GraphModule):", "    if True:",
            ["lowering/artifact/test_graph_forms.py::test_graphs_that_a_back_end_changes",
             "lowering/test_standalone.py::test_pieces_compile_side_by_side_and_are_found_again"]),
    # The log of a worker stays there.
    Removal(28, "pool/client/job.py", "        raised = logs.replay(records, self.on_record)", "        raised = None",
            ["lowering/artifact/test_warnings.py::test_a_warning_of_lowering"]),
    Removal(29, "lowering/core/runtime.py", '    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")\n',
            '    directory = ""\n',
            ["lowering/test_controls.py::test_a_fresh_cache_knows_nothing_and_leaves_nothing"]),
    Removal(29, "fxpool/torch_compat/inductor/cache_artifacts.py", "        cleared(name)\n", "",
            ["lowering/artifact/test_clearing.py::test_clearing_inductor_s_cache_leaves_no_entry"]),
    # A measurement does not wait for others.
    Removal(30, "fxpool/bench/measurement/exclusive.py", "    if not turn.wait(patience):", "    if False:",
            ["measurement/test_measure.py::test_one_process_after_the_other"]),
    # Every graph is compiled after AOTAutograd.
    Removal(31, _CHAIN,
            "        return started() if started is not None "
            "else dynamo_graph.compile_graph(gm, inputs, attempt, in_pieces)",
            '        raise CannotTravelError("removed", "removed")',
            ["lowering/test_controls.py::test_torch_s_counters_say_what_they_say_of_its_own_caches"]),
    # A backward is not linked, but compiled where it is loaded; what a compile asks of Dynamo is forgotten.
    Removal(32, "fxpool/torch_compat/inductor/aot.py", "    if result.compiled_bw is not None:", "    if False:",
            ["lowering/cpp/test_cpp_wrappers.py::test_a_hit_calls_no_compiler"]),
    Removal(32, "lowering/artifact/side_effects.py", "    if effects.restart:", "    if False:",
            ["lowering/artifact/test_effects.py::test_a_restart_that_a_pass_asks_for_is_replayed_cold_and_warm"]),
)  # fmt: skip
