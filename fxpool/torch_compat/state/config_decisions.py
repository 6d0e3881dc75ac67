"""Entries of torch's configuration that are not in a key, with a reason for each group.

Every other entry is in every key and is sent to the worker, so an entry that a new release adds is safe before it has
been reviewed. A test that changes every entry checks that these tables are complete and in use.
"""

from __future__ import annotations

#: Modules by their short names in keys and requests.
MODULES = {
    "inductor": "torch._inductor.config",
    "comms": "torch._inductor.config_comms",
    "functorch": "torch._functorch.config",
    "fx": "torch.fx.experimental._config",
    "dynamo": "torch._dynamo.config",
    "compiler": "torch.compiler.config",
    "export": "torch._export.config",
    "distributed": "torch.distributed.config",
}

#: Configuration modules that a compile does not read.
UNREAD = {
    "torch.utils.serialization.config": "torch.save and torch.load read it",
    "torch.fx.config": "progress bars, and whether nodes remember stack traces for messages",
    "torch._inductor.runtime.caching.config": "torch's own caches, which fxpool stands in for; it is functions only",
}

# Neither in the key nor sent: a worker has its own value, or it is not read after Dynamo has made the graph.
_STAYS: dict[str, dict[str, tuple[str, ...]]] = {
    "inductor": {
        "which of torch's own caches are used, and fxpool stands in for them": (
            "fx_graph_cache", "fx_graph_remote_cache", "autotune_local_cache", "autotune_remote_cache",
        ),
        "how many processes Inductor starts for itself, and how": (
            "compile_threads", "worker_start_method", "compile_worker_mode",
            "compile_worker_watchdog_interval_seconds",
        ),
        "how much of a profile is annotated afterwards, where the program runs": (
            "trace.provenance_tracking_max_events",
        ),
        "files that Inductor writes for a person who debugs it": (
            "trace.enabled", "trace.save_real_tensors", "trace.debug_dir", "trace.debug_log", "trace.info_log",
            "trace.fx_graph", "trace.fx_graph_transformed", "trace.ir_pre_fusion", "trace.ir_post_fusion",
            "trace.output_code", "trace.graph_diagram", "trace.graph_diagram_format", "trace.draw_orig_fx_graph",
            "trace.orig_fx_graph_diagram_format", "trace.dot_graph_shape", "trace.log_url_for_graph_xform",
            "trace.compile_profile", "trace.upload_tar", "trace.log_autotuning_results",
        ),
    },
    "functorch": {},
    "fx": {},
    "comms": {},
    "export": {},
    "distributed": {
        "which library carries collectives where the program runs; graphs name only the operators": (
            "use_torchcomms",
        ),
        "how stages of a pipeline send to each other, around what is compiled": (
            "pipeline_per_direction_p2p", "pipeline_per_edge_p2p",
        ),
    },
    "compiler": {
        "which record of earlier runs Dynamo reads before it traces": (
            "job_id", "pgo_extra_read_key", "pgo_extra_write_key", "workflow_id",
        ),
        "which sizes Dynamo takes for symbols: they are symbols in the graph": (
            "dynamic_sources", "dynamic_values", "unbacked_sources", "static_sources",
        ),
        "under it nothing is cached at all (`configs.caches_disabled`), and a worker keeps nothing by itself": (
            "force_disable_caches",
        ),
        "whether garbage is collected before a CUDA graph is recorded, where the program runs": (
            "force_cudagraph_gc",
        ),
    },
    "dynamo": {
        "read while Dynamo traces; what comes of it is the graph, with its inputs and symbols": (
            "specialize_int", "specialize_float", "dynamic_shapes", "assume_static_by_default", "_shapes_spec",
            "_dynamic_shapes_spec", "automatic_dynamic_shapes", "automatic_dynamic_shapes_mark_as",
            "force_parameter_static_shapes", "force_nn_module_property_static_shapes", "allow_ignore_mark_dynamic",
            "prepare_freezing",
            "traceable_tensor_subclasses", "nontraceable_tensor_subclasses", "rewrite_assert_with_torch_assert",
            "skipfiles_inline_module_allowlist", "allowed_functions_module_string_ignorelist",
            "force_unspec_int_unbacked_size_like_on_torchrec_kjt", "allow_unspec_int_on_nn_module", "skip_torchrec",
            "dont_skip_tracing", "raise_on_ctx_manager_usage", "allow_rnn", "capture_sparse_compute", "trace_numpy",
            "trace_autograd_ops", "enable_trace_contextlib", "enable_trace_unittest", "enable_trace_load_build_class",
            "enable_faithful_generator_behavior", "inline_inbuilt_nn_modules", "nested_graph_breaks",
            "install_free_tensors", "install_free_tensors_for_export", "use_graph_deduplication",
            "track_nodes_for_deduplication", "only_allow_pt2_compliant_ops", "capture_autograd_function",
            "capture_func_transforms", "capture_profiler_record_function", "constant_fold_autograd_profiler_enabled",
            "reorderable_logging_functions", "ignore_logging_functions", "_autograd_backward_strict_mode_banned_ops",
            "_autograd_backward_strict_mode_conditional_banned_ops", "enable_dynamo_decompositions",
            "graph_break_on_nn_param_ctor", "inline_torch_dispatch_torch_compile",
            "skip_fwd_side_effects_in_bwd_under_checkpoint", "inline_invoke_subgraph",
            "inline_single_use_invoke_subgraph", "enable_invoke_subgraph_regional_compile", "dead_code_elimination",
            "enable_aot_compile", "constant_functions", "canonicalize_output_graph_node_order",
            "computed_lazy_constant_max_nodes",
        ),
        "how Dynamo puts side effects and calls of compiled code into the program's byte code": (
            "replay_side_effects", "side_effect_replay_policy", "generate_pycode", "wrap_top_frame",
            "optimize_ddp_lazy_compile", "run_gc_after_compile", "invalidate_compile_context_weakrefs",
        ),
        "how often garbage is collected while this process compiles": ("gc_gen2_threshold_during_compile",),
        "which guards Dynamo makes, and how they are checked before a graph is called": (
            "guard_nn_modules", "guard_nn_modules_using_dict_tags", "use_lamba_guard_for_object_aliasing",
            "skip_fsdp_guards", "skip_nnmodule_hook_guards", "skip_no_tensor_aliasing_guards_on_parameters",
            "skip_tensor_guards_with_matching_dict_tags", "skip_guards_on_constant_func_defaults",
            "assume_dunder_attributes_remain_unchanged", "use_recursive_dict_tags_for_guards",
            "max_saved_pointers_for_recursive_dict_tags_check", "enable_cpp_guard_manager",
            "enable_cpp_symbolic_shape_guards", "enable_cpp_framelocals_guard_eval", "_unsafe_skip_fsdp_module_guards",
        ),
        "when Dynamo compiles, compiles again, gives up or refuses": (
            "minimum_call_count", "recompile_limit", "accumulated_recompile_limit",
            "skip_code_recursive_on_recompile_limit_hit", "fail_on_recompile_limit_hit", "disable",
            "error_on_recompile", "report_guard_failures", "raise_on_unsafe_aot_autograd", "error_on_nested_jit_trace",
            "error_on_dynamo_callback_in_fullgraph_compiled_code", "issue_3_13_0_warning", "enable_p2p_compilation",
            "automatic_dynamic_local_pgo", "automatic_dynamic_remote_pgo", "strict_precompile",
        ),
        "logs, measures and reproductions for a person who debugs Dynamo": (
            "log_file_name", "verbose", "verify_correctness", "debug_backend_override",
            "debug_inductor_config_override", "debug_dynamo_config_override", "log_graph_in_out_metadata",
            "replay_record_enabled", "cprofile", "dynamo_profiler", "repro_after", "repro_level",
            "repro_forward_only", "repro_tolerance", "repro_ignore_non_fp", "same_two_models_use_fp64", "base_dir",
            "graph_deduplication_lint", "debug_force_nested_calls", "debug_force_graph_break_on_leaf_return",
            "debug_disable_compile_counter", "record_compile_time_instruction_count", "debug_dir_root",
            "log_compilation_metrics", "inject_BUILD_SET_unimplemented_TESTING_ONLY", "pt2_compile_id_prefix",
        ),
        "a cache of fake tensors' metadata, or its check: the same metadata with it and without": (
            "fake_tensor_cache_enabled", "fake_tensor_cache_crosscheck_enabled",
        ),
        "names of the module's own, not settings": (
            "TYPE_CHECKING", "_save_config_ignore", "DEBUG_DIR_VAR_NAME",
        ),
    },
}  # fmt: skip

# Sent, so that a worker behaves like the program, but not in the key: the result of a compile does not depend on it.
_ONLY_TRAVELS: dict[str, dict[str, tuple[str, ...]]] = {
    "inductor": {
        "where and how torch's own caches and processes are kept": (
            "worker_suppress_logging", "worker_log_path", "bundled_autotune_remote_cache",
            "bundle_triton_into_fx_graph_cache", "quiesce_async_compile_pool", "quiesce_async_compile_time",
            "autotune_in_subproc", "subprocess_autotune_timeout",
        ),
        "what is shown or logged": (
            "verbose_progress", "disable_progress", "log_tlparse", "enable_auto_functionalized_v2_log",
            "developer_warnings", "_profile_var", "profiler_mark_wrapper_call_log", "save_args",
        ),
        "which compiler is used, and how it finds headers: its digest and flags are the key's `toolchain`": (
            "cpp.cxx", "cpp_cache_precompile_headers",
        ),
        "when a CUDA graph is recorded again, and into how much memory; any thread of the program may load it": (
            "triton.cudagraph_managed_input_rerecord_limit", "triton.cudagraph_managed_input_rerecord_action",
            "triton.cudagraph_initial_mempool_allocation_gb", "triton.cudagraph_dynamic_shape_rerecord_limit",
        ),
        "a pause in a test of torch's": ("sleep_sec_TESTING_ONLY",),
    },
    "functorch": {
        "AOTAutograd's own cache, which fxpool stands in for": (
            "enable_autograd_cache", "enable_remote_autograd_cache", "bundled_autograd_cache", "strict_autograd_cache",
            "force_autograd_cache", "autograd_cache_normalize_inputs",
        ),
        "what is logged": ("cse_log", "debug_assert_log"),
    },
    "fx": {
        "what is printed": ("print_data_dependent_error",),
        "graphs under translation validation do not travel": ("translation_validation_no_bisect",),
    },
}  # fmt: skip

#: Entries whose value is a directory. Its default depends on the location of torch or of the program.
DIRECTORIES = frozenset(("cutlass.cutlass_dir", "cuda.cutlass_dir", "xpu.cutlass_dir"))


def _reasons(table: dict[str, dict[str, tuple[str, ...]]]) -> dict[str, dict[str, str]]:
    return {
        module: {name: reason for reason, names in table.get(module, {}).items() for name in names}
        for module in MODULES
    }


#: Module -> entry -> the reason why it is neither in the key nor sent.
STAYS = _reasons(_STAYS)
#: Module -> entry -> the reason why it is sent, but not in the key.
ONLY_TRAVELS = _reasons(_ONLY_TRAVELS)
