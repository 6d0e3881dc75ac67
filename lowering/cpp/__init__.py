"""C++ kernels: compiled side by side into one library, and called from it.

    kernels             compiles a graph's kernels in a few units, as sub-jobs
    unit_source         C++ source of one unit, and the way Python calls its kernels
    built_libraries     libraries of one source each: C++ wrappers, Halide, CUDA and ROCm kernels
    source_builds       shares libraries of CUDA and ROCm sources between graphs, through the store
    cpu_tuning          times candidates on the CPU, exclusively, and stores the times per host
    library             loads libraries in the process that calls them, also from a file system mounted noexec
    host_facts          capabilities of the host's toolchain, probed once per host
    precompiled_header  the header of all kernels, compiled once per host and flags

Imports no other part of `lowering`.
"""
