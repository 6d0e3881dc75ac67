"""What torch lets a program set and a key need not see, and why: one reason per group.

The names are those that `torch_state` finds: setters of ``torch._C``, public functions that set something, attributes
below ``torch.backends``. What is neither here nor seen to change a key fails the test, until somebody has decided.
"""

from __future__ import annotations

_JIT = "TorchScript's executor and tracer: graphs with TorchScript in them are refused, and nothing else runs there"
_TENSOR = "changes the object it is given, and no state of the process or the thread"
_RUN = "read when kernels run, where the program runs; nothing that is compiled depends on it"
_PERSON = "what is warned of, shown, logged or measured"
_OTHER = "of another part of torch: nothing in tracing, compiling or loading asks for it"

_REASONS: dict[str, tuple[str, ...]] = {
    _JIT: (
        "core._debug_set_autodiff_subgraph_inlining", "core._debug_set_fusion_group_inlining",
        "core._enable_mobile_interface_call_export", "core._hack_do_not_use_clone_module_with_class",
        "core._jit_nvfuser_set_comparison_callback", "core._jit_pass_dce_allow_deleting_nodes_with_side_effects",
        "core._jit_pass_onnx_set_dynamic_input_shape", "core._jit_set_autocast_mode", "core._jit_set_bailout_depth",
        "core._jit_set_emit_hooks", "core._jit_set_fusion_strategy", "core._jit_set_inline_everything_mode",
        "core._jit_set_llga_enabled", "core._jit_set_logging_option", "core._jit_set_logging_stream",
        "core._jit_set_num_profiled_runs", "core._jit_set_nvfuser_enabled", "core._jit_set_nvfuser_guard_mode",
        "core._jit_set_nvfuser_horizontal_mode", "core._jit_set_nvfuser_single_node_mode",
        "core._jit_set_nvfuser_skip_node_kind", "core._jit_set_onnx_log_enabled",
        "core._jit_set_onnx_log_output_stream", "core._jit_set_profiling_executor", "core._jit_set_profiling_mode",
        "core._jit_set_symbolic_shapes_test_mode", "core._jit_set_te_cuda_pointwise_block_count",
        "core._jit_set_te_cuda_pointwise_block_size", "core._jit_set_te_cuda_pointwise_loop_levels",
        "core._jit_set_te_generate_block_code", "core._jit_set_te_must_use_llvm_cpu",
        "core._jit_set_texpr_dynamic_shape_enabled", "core._jit_set_texpr_fuser_enabled",
        "core._jit_set_texpr_reductions_enabled", "core._jit_set_tracer_state_warn",
        "core._jit_set_utf8_decoding_ignore", "core._jit_texpr_set_fallback_allowed", "core._set_graph_exec_group",
        "core._set_graph_executor_optimize", "core._set_should_use_format_with_string_table",
        "core._set_tracing_state", "core._set_value_trace", "core._tracer_set_force_outplace",
        "core._tracer_set_get_unique_name_fn", "core._tracer_warn_use_python", "core._set_default_mobile_cpu_allocator",
        "torch.jit.set_fusion_strategy", "torch.jit.set_module", "torch.jit.enable_onednn_fusion",
        "torch.jit.enable_mem_efficient_fusion",
    ),
    _TENSOR: (
        "core._increment_version", "core._set_conj", "core._set_neg", "core._set_tensor_metadata",
        "core._set_fake_constant",
        "core._set_throw_on_mutable_data_ptr", "core._set_warn_deprecated_on_mutable_data_ptr",
        "core._set_storage_access_error_msg", "core._set_storage_data_ptr_access_error_msg",
        "core._autograd._set_creation_meta", "core._autograd._unsafe_set_version_counter",
        "core._functorch._maybe_unsafe_set_level", "torch.fx.experimental.proxy_tensor.set_proxy_slot",
        "torch.fx.experimental.proxy_tensor.set_meta", "torch.quantization.disable_fake_quant",
        "torch.quantization.disable_observer", "torch.quantization.enable_fake_quant",
        "torch.quantization.enable_observer", "torch.quantization.fake_quantize.disable_fake_quant",
        "torch.quantization.fake_quantize.disable_observer", "torch.quantization.fake_quantize.enable_fake_quant",
        "torch.quantization.fake_quantize.enable_observer", "torch.utils.set_module",
    ),
    "a question with arguments, not a setting": (
        "core._can_use_cudnn_attention", "core._can_use_flash_attention", "core._can_use_mem_efficient_attention",
        "core._check_schema_allow_fake_script_object", "core._should_allow_numbers_as_tensors",
        "torch.fx.experimental.optimization.use_mkl_length", "backends.quantized.supported_engines",
    ),
    "forbids that backends' switches are set by assignment, and sets none": ("backends.disable_global_flags",),
    _RUN: (
        "core._accelerator_hooks_set_current_device", "core._cudnn_set_conv_benchmark_empty_cache",
        "core._set_override_stale_capture_stream",
        "torch.accelerator.set_device_index", "torch.accelerator.set_device_idx", "torch.accelerator.set_stream",
        "torch.autograd.graph.set_override_stale_capture_stream", "torch.cpu.set_device", "torch.cuda.set_device",
        "torch.cuda.set_stream", "torch.cuda.set_per_process_memory_fraction", "torch.cuda.use_mem_pool",
        "torch.cuda.memory.set_per_process_memory_fraction", "torch.cuda.memory.use_mem_pool",
        "torch.cuda.tunable.set_max_tuning_duration", "torch.cuda.tunable.set_max_tuning_iterations",
        "torch.cuda.tunable.set_filename", "torch.cuda.tunable.set_rotating_buffer_size",
        "torch.cuda.tunable.enable",
        "torch.cuda.tunable.set_numerical_check_tolerances", "torch.cuda.tunable.set_cublaslt_requested_algo_count",
        "torch.distributed.set_timeout", "torch.distributed.distributed_c10d.set_timeout", "torch.mps.set_stream",
        "torch.mps.streams.set_stream", "torch.mps.set_per_process_memory_fraction",
        "torch.mtia.set_stream", "torch.mtia.set_device", "torch.xpu.set_device", "torch.xpu.set_stream",
        "torch.xpu.set_per_process_memory_fraction", "torch.xpu.use_mem_pool",
        "torch.xpu.memory.set_per_process_memory_fraction", "torch.xpu.memory.use_mem_pool",
        "backends.cuda.cublas_workspace_size", "backends.cuda.cublaslt_workspace_size",
        "backends.cuda.blas_workspace_size", "backends.cuda.cufft_plan_cache.max_size",
    ),
    "the state of a generator is an input of the operators that draw from it, at every call": (
        "torch.set_rng_state", "torch.random.set_rng_state", "torch.cuda.set_rng_state",
        "torch.cuda.set_rng_state_all", "torch.cuda.random.set_rng_state", "torch.cuda.random.set_rng_state_all",
        "torch.mps.set_rng_state", "torch.mtia.set_rng_state", "torch.mtia.set_rng_state_all",
        "torch.xpu.set_rng_state", "torch.xpu.set_rng_state_all", "torch.xpu.random.set_rng_state",
        "torch.xpu.random.set_rng_state_all",
    ),
    _PERSON: (
        "core._activate_gpu_trace", "core._dispatch_set_report_error_callback", "core._logging_set_logger",
        "core._set_backcompat_broadcast_warn", "core._set_backcompat_keepdim_warn",
        "core._set_print_stack_traces_on_fatal_signal", "core._set_warnAlways",
        "core._set_warn_on_accumulate_grad_stream_mismatch", "core.set_vital", "core._valgrind_toggle_and_dump_stats",
        "core._set_thread_name", "core._autograd._disable_profiler", "core._autograd._disable_profiler_legacy",
        "core._autograd._enable_profiler", "core._autograd._enable_profiler_legacy",
        "core._autograd._enable_record_function", "core._autograd._set_empty_test_observer",
        "core._autograd._toggle_collection_dynamic", "core._functorch._set_vmap_fallback_warning_enabled",
        "torch.set_warn_always", "torch.set_printoptions", "torch.set_vital",
        "torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch", "torch.cuda.set_sync_debug_mode",
        "torch.distributed.set_debug_level", "torch.distributed.set_debug_level_from_env",
        "torch.distributed.rpc.enable_gil_profiling", "torch.utils.checkpoint.set_checkpoint_debug_enabled",
    ),
    _OTHER: (
        "core._set_worker_pids", "core._set_worker_signal_handlers", "core._set_generator_metaclass",
        "torch.__future__.set_overwrite_module_params_on_conversion",
        "torch.__future__.set_swap_module_params_on_conversion", "torch.hub.set_dir",
        "torch.distributed.distributed_c10d.set_pytorch_distributed_envs_from_justknobs",
        "torch.distributed.fsdp.wrap.enable_wrap", "torch.multiprocessing.allow_connection_pickling",
        "torch.multiprocessing.set_executable", "torch.multiprocessing.set_forkserver_preload",
        "torch.multiprocessing.set_start_method", "torch.multiprocessing.set_sharing_strategy",
        "torch.serialization.set_default_load_endianness", "torch.serialization.set_crc32_options",
        "torch.utils.data.datapipes.dataframe.dataframe_wrapper.set_df_wrapper",
        "torch.utils.data.datapipes.dataframe.dataframes.disable_capture",
        "torch.utils.checkpoint.set_device_states",
    ),
    "Dynamo reads it while it traces, or before it calls a graph; what comes of it is the graph": (
        "torch.compiler.allow_in_graph", "torch.compiler.set_default_backend", "torch.compiler.set_stance",
        "torch.compiler.set_enable_guard_collectives", "torch.compiler.disable", "torch._disable_dynamo",
    ),
    "tracing itself sets it, for as long as it traces": (
        "core._dynamo_restore_local_dispatch_key_set",
        "core._set_dispatch_mode", "core._set_meta_in_tls_dispatch_include", "core._set_skip_next_torch_function",
        "core._autograd._saved_tensors_hooks_set_tracing", "core._functorch._set_dynamic_layer_keys_included",
        "core._functorch._func_increment_nesting", "core._functorch._grad_increment_nesting",
        "core._functorch._jvp_increment_nesting", "core._functorch._vmap_increment_nesting",
        "core._functorch.tls_set_vmap_excluded", "core._vmapmode_increment_nesting",
        "torch.fx.experimental.proxy_tensor.disable_autocast_cache",
        "torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing",
        "torch.fx.experimental.proxy_tensor.set_original_aten_op", "torch.fx.traceback.set_stack_trace",
        "torch.fx.traceback.set_grad_fn_seq_nr", "torch.fx.traceback.set_current_meta",
        "torch.fx.traceback.set_current_replay_node", "torch.overrides.enable_reentrant_dispatch",
        "torch._enable_functionalization", "torch._disable_functionalization",
    ),
    "how long casts are kept that autocast has made; no cast is another for it": (
        "core.autocast_increment_nesting", "torch.autocast_increment_nesting",
    ),
    "which tensors a recorded CUDA graph has handed out; it says nothing of the graph": (
        "core._set_cached_tensors_enabled",
    ),
    "how many threads run independent operators of TorchScript; it may be set once only": (
        "core.set_num_interop_threads", "torch.set_num_interop_threads",
    ),
    "is a dispatch mode with hooks while it lasts, and refused as one": (
        "torch.autograd.graph.allow_mutation_on_saved_tensors",
    ),
}  # fmt: skip

#: name -> the record in the key, of what this build or machine may have no hardware or library for
RECORDED: dict[str, str] = {
    "core._set_linalg_preferred_backend": "linalg",
    "backends.cuda.preferred_linalg_library": "linalg",
    "core._set_cpu_allow_fp16_reduced_precision_reduction": "cpu_allow_fp16_reduced_precision_reduction",
    "core._set_onednn_allow_tf32": "onednn_allow_tf32",
    "backends.mkldnn.allow_tf32": "onednn_allow_tf32",
    "backends.opt_einsum.enabled": "opt_einsum",
    "backends.opt_einsum.strategy": "opt_einsum_strategy",
    "core._rename_privateuse1_backend": "private_device",
    "torch.utils.rename_privateuse1_backend": "private_device",
    "torch.utils.backend_registration.rename_privateuse1_backend": "private_device",
    "torch.nn.attention.activate_flash_attention_impl": "flash_implementation",
    "torch.nn.attention.restore_flash_attention_impl": "flash_implementation",
}

#: name -> reason
ALLOWED: dict[str, str] = {name: reason for reason, names in _REASONS.items() for name in names}

#: setters that builds with CUDA have besides, by the beginning of their names
ALLOWED_PREFIXES = {
    "core._cuda_": _RUN,
    "core._mps_": _RUN,
    "core._xpu_": _RUN,
    "core._mtia_": _RUN,
    "core._hip_": _RUN,
}
