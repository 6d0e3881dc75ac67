"""GPU kernels, compiled by workers that see no GPU.

    devices            answers for the request's devices in a worker, from their facts
    triton_kernels     compiles a graph's Triton kernels as sub-jobs, into one part of its entry
    triton_library     loads, measures and launches them, without Triton
    autotune           chooses templates by time: compiled without a GPU, timed by a worker that sees it
    benchmark_cache    stores the results of measurements, made once per host

Imports `request` and `core`.
"""
