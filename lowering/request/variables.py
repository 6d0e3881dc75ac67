"""Environment variables that affect compiled code: those in a key, and those that a worker gets.

torch and Triton read them at every compile, and no configuration contains them. Triton itself says which of its
variables count (those that invalidate its cache, and those of its options' defaults); a test compares this list with
the installed Triton.
"""

from __future__ import annotations

from fxpool.codecache.key import programs, toolchain

__all__ = ["FROM_FILES", "in_key", "travels"]

# Those that invalidate the cache of Triton 3.6 to 3.9, dumps among them: the dump is of a new compile.
_OF_TRITON = (
    "ALLOW_LHS_TMEM_LAYOUT_CONVERSION", "AMDGCN_ENABLE_DUMP", "AMDGCN_USE_BUFFER_ATOMICS", "AMDGCN_USE_BUFFER_OPS",
    "DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5", "DISABLE_PTXAS_OPT", "LLVM_ENABLE_TIMING",
    "LLVM_EXTRACT_DI_LOCAL_VARIABLES", "LLVM_IR_ENABLE_DUMP", "LLVM_PASS_PLUGIN_PATH",
    "MLIR_DISABLE_MULTITHREADING", "MLIR_DUMP_PATH", "MLIR_ENABLE_DIAGNOSTICS", "MLIR_ENABLE_DUMP",
    "MLIR_ENABLE_TIMING", "NVPTX_ENABLE_DUMP", "TRITON_CONSAN_INIT_ALLOCATIONS", "TRITON_DEFAULT_FP_FUSION",
    "TRITON_DISABLE_LINE_INFO", "TRITON_DUMP_MIR", "TRITON_ENABLE_ASAN", "TRITON_ENABLE_EXPERIMENTAL_CONSAN",
    "TRITON_ENABLE_LLVM_DEBUG", "TRITON_F32_DEFAULT", "TRITON_FORCE_DISABLE_FP_FUSION", "TRITON_HIP_USE_ASYNC_COPY",
    "TRITON_HIP_USE_BLOCK_PINGPONG", "TRITON_HIP_USE_COEXEC_SCHEDULER", "TRITON_HIP_USE_EXPERT_SCHEDULING",
    "TRITON_HIP_USE_IN_THREAD_TRANSPOSE", "TRITON_LLVM_DEBUG_ONLY", "TRITON_OVERRIDE_ARCH",
    "TRITON_PARTITION_SCHEDULING_DUMP_DATA_ONLY", "TRITON_PARTITION_SCHEDULING_DUMP_LOOP_ONLY",
    "TRITON_PARTITION_SCHEDULING_ENABLE_DUMP_DOT", "TRITON_PLUGIN_PATHS", "TRITON_PLUGIN_VERSION_CHECK", "USE_IR_LOC",
)  # fmt: skip
# Those that its options and stages come from, and its cache learns of through them, or not at all.
_OF_TRITONS_OPTIONS = (
    "AMDGCN_ANALYZE_SMALL_TENSOR_RANGE", "AMDGCN_SCALARIZE_PACKED_FOPS", "PTXAS_OPTIONS",
    "TRITON_ALLOW_NON_CONSTEXPR_GLOBALS", "TRITON_AMD_CODEGEN_PATH", "TRITON_BACKENDS_IN_TREE", "TRITON_DEBUG",
    "TRITON_DEFAULT_BACKEND", "TRITON_FPSAN_HOMOMORPHIC_CASTS", "TRITON_INSTRUMENTATION_MODE", "TRITON_INTERPRET",
    "TRITON_MOCK_PTX_VERSION", "TRITON_SWAP_MIR_ENABLE_MISCHED", "TRITON_USE_META_WS",
)  # fmt: skip
_OF_TORCH = (
    "ATEN_CPU_CAPABILITY",
    "PYTORCH_ROCM_ARCH",
    "CI",  # under it, Inductor leaves out configurations of templates
)
_IN_KEY = frozenset((*_OF_TRITON, *_OF_TRITONS_OPTIONS, *_OF_TORCH))
_PREFIX_IN_KEY = "TORCHINDUCTOR_"
# Say where things are or how many processes to use. Configuration that comes from such a variable
# is captured with the configuration.
_NOT_IN_KEY = frozenset(
    ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_FX_COMPILE_MODE", "TORCHINDUCTOR_COMPILE_THREADS",
     "TORCHINDUCTOR_WORKER_START", "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE",
     "TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCHINDUCTOR_DUMP_LAUNCH_PARAMS",
     "TORCHINDUCTOR_COMPILE_WORKER_WATCHDOG_INTERVAL")
)  # fmt: skip
#: Under these, Triton takes code from files of a directory: nothing that is compiled is kept.
FROM_FILES = ("TRITON_KERNEL_OVERRIDE", "TRITON_SWAP_MIR")

# Where tools and libraries are: a worker needs them, the tool chain's facts are what the key holds.
_FOR_WORKERS = ("PATH", "HOME", "LD_LIBRARY_PATH", "CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
                "LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDACXX", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
                "ROCM_HOME", "ROCM_PATH", "HIP_VISIBLE_DEVICES", "HALIDE_LIB", "HALIDE_INCLUDE",
                "TORCH_CUDA_ARCH_LIST", "NVIDIA_TF32_OVERRIDE")  # fmt: skip
_BY_NAME = frozenset((*_IN_KEY, *_FOR_WORKERS, *toolchain.ENVIRONMENT))
# What begins so goes to workers, too: settings of programs in front of a compiler, and where those are.
_PREFIXES = (_PREFIX_IN_KEY, "TRITON_", *programs.FRONTS.values())


def in_key(name: str) -> bool:
    """Return whether a variable's value is in every key."""
    return name in _IN_KEY or (name.startswith(_PREFIX_IN_KEY) and name not in _NOT_IN_KEY)


def travels(name: str) -> bool:
    """Return whether a worker gets a variable as the program has it."""
    return name in _BY_NAME or (name.startswith(_PREFIXES) and name not in _NOT_IN_KEY)
