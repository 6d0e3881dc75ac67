"""Triton kernels: Inductor's, and a program's own.

triton_compile    compiles Inductor's kernels for launching, without a GPU
triton_launch     launches binaries with torch's static launcher, without Triton
user_kernels      a program's kernels in a graph, as plain data and back
autotuning        chooses templates by time: hands out the work that Inductor would run
benchmarks        the counterpart of `autotuning`: times candidates on a device
"""
