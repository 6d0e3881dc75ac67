"""Decisions about flags of torch that a worker does not take over from its client (see `torch_flags`)."""

from __future__ import annotations

from fxpool.torch_compat.state import compile_flags

__all__ = ["ALLOWED", "DIFFERING", "DIFFERING_LATER", "IN_FORCE"]

_REASONS: dict[str, str] = {
    "AOTAutograd or Inductor sets it around a part of a compile, in whichever process that part runs": """
        torch._dispatch.python.CROSSREF_FUNCTIONALIZE
        torch._dynamo.compiled_autograd.active_disable_ctx
        torch._functorch._aot_autograd.codegen._capture_tls
        torch._functorch._aot_autograd.codegen._capture_tls.sink
        torch._functorch._aot_autograd.codegen._capture_tls.trace_sink
        torch._functorch._aot_autograd.graph_compile._thread_local
        torch._functorch._aot_autograd.graph_compile._thread_local.state
        torch._higher_order_ops.invoke_subgraph._invoke_subgraph_call_state
        torch._higher_order_ops.invoke_subgraph._invoke_subgraph_call_state.current
        torch._inductor.codecache.CUDACodeCache.compile
        torch._inductor.codegen.common._privateuse1_backend_init_in_progress
        torch._inductor.codegen.cutedsl.cutedsl_op_overrides._CUTEDSL_FAST_MATH
        torch._inductor.freezing_utils._TLS
        torch._inductor.freezing_utils._TLS.freezing_active
        torch._inductor.ir.ComputedBuffer._force_realize
        torch._inductor.ir.ConstantBuffer.override_device
        torch._inductor.ir.FixedLayout.make_indexer
        torch._inductor.ir.FlexibleLayout.allow_indexing
        torch._inductor.ir.IRNode._current_mempool
        torch._inductor.ir.IRNode._current_origins
        torch._inductor.ir.IRNode._current_stream_idx
        torch._inductor.runtime.triton_helpers._skip_gpu_driver_setup
        torch._inductor.virtualized.V.graph.current_node
        torch._inductor.virtualized.V.graph.get_dtype
        torch._inductor.virtualized.V.graph.inplaced_to_remove
        torch._inductor.virtualized.V.graph.module
        torch._inductor.virtualized.V.graph.removed_buffers
        torch._inductor.virtualized.V.graph.scheduler
        torch._inductor.virtualized.V.kernel._index_dtype
        torch._inductor.virtualized.V.kernel.compute
        torch._inductor.virtualized.threadlocal
        torch._library.fake_impl.global_ctx_getter
        torch._library.triton.wrap_triton_enabled
        torch._library.triton.wrap_triton_enabled.value
        torch.cuda.get_rng_state
        torch.cuda.set_rng_state
        torch.fx._lazy_graph_module._force_skip_lazy_graph_module_flag
        torch.fx._lazy_graph_module._use_lazy_graph_module_flag
        torch.fx._symbolic_trace.CURRENT_PATCHER
        torch.fx.experimental.proxy_tensor.CURRENT_DECOMPOSITION_TABLE
        torch.fx.experimental.proxy_tensor.ORIGINAL_ATEN
        torch.fx.experimental.proxy_tensor._CURRENT_MAKE_FX_TRACER
        torch.fx.experimental.proxy_tensor._disable_update_tensor_tracker_tls.value
        torch.fx.experimental.symbolic_shapes.TLS
        torch.fx.graph.CodeGen._sym_repr
        torch.fx.traceback._regional_inductor_subgraph_name_tls
        torch.fx.traceback._regional_inductor_subgraph_name_tls.value
        torch.fx.traceback._should_preserve_node_meta
        torch.fx.traceback.current_meta
        torch.fx.traceback.current_replay_node
        torch.fx.traceback.should_preserve_node_meta
    """,
    "a worker has a context of its own there: `tracing.worker_context`": """
        torch._guards._TLS
        torch._guards._TLS.compile_context
        torch._guards._TLS.tracing_context
    """,
    "a dispatch mode sets it; those of a program are refused": """
        torch.autograd.graph._allow_mutation_on_saved_tensors_enabled
        torch.utils._debug_mode._ACTIVE_DEBUG_MODE_COUNT
        torch.utils._debug_mode._IN_INDUCTOR_BENCHMARK
        torch.utils._debug_mode._RECORD_TRITON_OUTPUTS
        torch.utils._debug_mode._TRITON_INPUT_HASH_FN
        torch.utils._debug_mode._TRITON_OUTPUT_HASH_FN
        torch.utils._debug_mode._mode._ACTIVE_DEBUG_MODE_COUNT
        torch.utils._debug_mode._utils._IN_INDUCTOR_BENCHMARK
        torch.utils._debug_mode._utils._RECORD_TRITON_OUTPUTS
        torch.utils._debug_mode._utils._TRITON_INPUT_HASH_FN
        torch.utils._debug_mode._utils._TRITON_OUTPUT_HASH_FN
        torch.utils._python_dispatch._is_in_any_mode_without_ignore_compile_internals
        torch.utils._python_dispatch._is_in_non_infra_torch_dispatch_mode
        torch.utils._python_dispatch._is_in_torch_dispatch_mode
    """,
    "only Dynamo reads it, or it is over when Dynamo calls a backend": """
        torch._dynamo.compiled_autograd.compiled_autograd_enabled
        torch._dynamo.compiled_autograd.compiled_autograd_enabled_force_eager
        torch._dynamo.compiled_autograd.depth
        torch._dynamo.convert_frame.initial_global_state
        torch._dynamo.create_parameter_op._TLS
        torch._dynamo.create_parameter_op._TLS.convert_tracable_parameter
        torch._dynamo.current_scope_id._current_scope_id
        torch._dynamo.current_scope_id._current_scope_id.value
        torch._dynamo.eval_frame._force_eager_nested_compile
        torch._dynamo.eval_frame._force_eager_nested_compile.depth
        torch._dynamo.eval_frame._in_optimized_module
        torch._dynamo.eval_frame.dynamo_tls.skip_reasons
        torch._dynamo.symbolic_convert.explain
        torch._dynamo.symbolic_convert.tls
        torch._dynamo.symbolic_convert.tls.current_tx
        torch._dynamo.trace_rules._force_inline_flag
        torch._dynamo.utils._current_node
        torch._dynamo.utils._current_node.value
        torch._dynamo.variables.base._vt_active_calls
        torch._higher_order_ops.utils._hop_compile_tls
        torch._higher_order_ops.utils._hop_compile_tls.in_hop_compile
        torch._subclasses.fake_tensor.fake_tensor_tls.allow_non_fake_inputs_override
    """,
    "torch writes it and reads it nowhere": """
        torch._subclasses.meta_utils.tls
        torch._subclasses.meta_utils.tls.disable_inference_mode
    """,
    "how times, names, counts and files for a person are recorded": """
        torch._dynamo.utils._dynamo_timed_tls
        torch._dynamo.utils._dynamo_timed_tls.depth
        torch._dynamo.utils._gc_threshold_depth
        torch._dynamo.utils._gc_threshold_saved
        torch._dynamo.utils._metrics_context_tls
        torch._dynamo.utils.self.tls
        torch._functorch._aot_autograd.logging_utils.graph_being_compiled
        torch._functorch._aot_autograd.logging_utils.nth_graph
        torch._inductor.codegen.wrapper.PythonWrapperCodegen.define_kernel
        torch._inductor.debug.GRAPH_COMPILE_IDS
        torch._inductor.debug.GRAPH_EXECUTION_ORDER
        torch._inductor.debug.RECORD_GRAPH_EXECUTION
        torch._inductor.debug._inductor_kernel_extern_info
        torch._inductor.debug._inductor_kernel_provenance_debug_handle
        torch._inductor.debug._inductor_kernel_stack_trace
        torch._inductor.debug._inductor_post_to_pre_grad_nodes
        torch._inductor.debug._inductor_pre_grad_node_stack_trace
        torch._inductor.debug._inductor_triton_kernel_to_post_grad_node_info
        torch._inductor.debug._pre_grad_graph_id
        torch._inductor.graph.GraphLowering.compile_to_module
        torch._inductor.graph.GraphLowering.save_output_code
        torch._inductor.metrics.generated_kernel_count
        torch._inductor.output_code.CompiledFxGraph.__init__
        torch._inductor.runtime.debug_utils.local
        torch._inductor.scheduler.Scheduler.__init__
        torch._logging._internal.GET_DTRACE_STRUCTURED
        torch._prims.debug_prims.LOAD_TENSOR_READER
        torch.fx.experimental.recording.NEST
        torch.random._fork_rng_warned_already
    """,
    "compiled code reads it when it runs, where the program runs": """
        torch._functorch._activation_offloading.offload_ops._pool_enabled
        torch._inductor.compile_fx.thread_local
        torch._inductor.cudagraph_trees.local
        torch._inductor.hooks.INTERMEDIATE_HOOKS
        torch._inductor.runtime.benchmarking.self._cudagraph_benchmark_state
        torch.cpu._current_stream
        torch.utils.checkpoint._checkpoint_debug_enabled
    """,
    "of torch.export, torch.save and TorchScript, around what they trace or write": """
        torch.ScriptMethod.__call__
        torch._export.serde.serialize._CURRENT_DESERIALIZER
        torch._export.utils._DISABLE_ATEN_TO_ASSERTION_PASS
        torch.autograd._engine_run_backward
        torch.autograd.grad
        torch.autograd.graph._engine_run_backward
        torch.export._trace._EXPORT_FLAGS
        torch.export._trace._EXPORT_MODULE_HIERARCHY
        torch.export.unflatten.RUN_WITH_INTERPRETER
        torch.serialization._serialization_tls.materialize_fake_tensors
        torch.serialization._serialization_tls.skip_data
    """,
    "how a graph is printed or copied": """
        torch.fx.graph_module._forward_from_src
        torch.fx.graph_module._share_torchbind_and_process_group
    """,
    "values of configuration, which are captured by their entries": """
        torch.utils._config_module.module._get_dict_cache_var
        torch.utils._config_module.module._get_dict_dirty_keys_var
        torch.utils._config_module.module._hash_cache_var
        torch.utils._config_module.module._hash_dirty_var
        torch.utils._config_module.self._prior
        torch.utils._config_module.self.user_override
    """,
}

#: Flag -> the reason why a worker need not take it over from its client.
ALLOWED = {name: reason for reason, names in _REASONS.items() for name in names.split()}

#: Flag -> the switch by which a worker takes it over.
IN_FORCE = {
    **{f"{module}.{place}": name for name, (module, place) in compile_flags.FLAGS.items()},
    "torch.fx._symbolic_trace._is_fx_tracing_tls": "fx_tracing",
    "torch._GLOBAL_DEVICE_CONTEXT": "default_device",
    "torch.utils._device.CURRENT_DEVICE": "default_device",
    "torch.utils.checkpoint._enable_checkpoint_early_stop": "checkpoint_early_stop",
}

#: Flag -> the reason why its value in a worker may be another.
DIFFERING = {
    "torch._dynamo.utils._dynamo_timed_tls.depth": "how many measurements of time are nested",
    "torch._functorch._aot_autograd.codegen._capture_tls.trace_sink": "collects sources for a structured trace",
    "torch._dynamo.symbolic_convert.tls.current_tx": "only Dynamo reads it",
    "torch._dynamo.utils._gc_threshold_depth": "how garbage is collected",
    "torch._dynamo.utils._gc_threshold_saved": "how garbage is collected",
    "torch._C._current_graph_task_id": "counts backwards",
    "torch._inductor.codecache._HEADER_DIR": "where fxpool has Inductor's headers precompiled",
    "torch._inductor.codecache._HEADER_LOCK_DIR": "where fxpool has Inductor's headers precompiled",
    "torch._inductor.debug._pre_grad_graph_id": "identifies a graph of the process",
    "torch._subclasses.fake_tensor.FakeTensorMode.cache_hits": "counts",
    "torch._subclasses.fake_tensor.FakeTensorMode.cache_misses": "counts",
    "torch._subclasses.meta_utils.tls.disable_inference_mode": "nothing reads it",
}

_AUTOGRAD = "which backward autograd is running"
_BESIDE = (
    "AOTAutograd is over in stock; for sizes that are symbols, stock lowers a backward in the same state as a worker"
)

#: The same for the lowering of a backward: stock waits until autograd comes to it, a worker lowers it with the forward.
DIFFERING_LATER = {
    "torch._C._autograd._get_current_graph_task_keep_graph": _AUTOGRAD,
    "torch._C._current_autograd_node": _AUTOGRAD,
    "torch._C._is_multithreading_enabled": _BESIDE,
    "torch._dynamo.compiled_autograd.active_disable_ctx": _BESIDE,
    "torch.utils._python_dispatch._is_in_torch_dispatch_mode": _BESIDE,
    "included": _BESIDE,
    "excluded": _BESIDE,
}
