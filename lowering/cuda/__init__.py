"""GPU kernels, compiled by workers that see no GPU.

    devices            stands in for the request's devices, of which it has the facts
    triton_kernels     a graph's Triton kernels, compiled as sub-jobs into one part of its entry
    triton_library     loads, measures and launches them, without Triton
    autotune           templates chosen by time: compiled without a GPU, timed by a worker that is given it
    benchmark_cache    decisions that take a clock, made once per host and kept

Imports `request` and `core`.
"""
