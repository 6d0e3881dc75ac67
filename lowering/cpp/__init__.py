"""C++ kernels: compiled side by side into one library, and called from it.

    kernels               a graph's kernels, in few units that are compiled as sub-jobs
    unit_source           C++ of one unit, and how Python calls its kernels
    built                 libraries of one source each: C++ wrappers, Halide, CUDA and ROCm kernels
    source_builds         those of CUDA and ROCm sources in the store, whichever graph has them
    cpu_tuning            ways to compute on the CPU that are chosen by time: timed alone, kept per host
    library               libraries in the process that calls them
    executable            loads it from a file system on which nothing may be executed
    host_facts            what the host's toolchain can do, found once per host
    precompiled_header    the header of all kernels, compiled once per host and flags

Imports no other part of `lowering`.
"""
