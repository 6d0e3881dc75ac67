"""Triton kernels: Inductor's, and a program's own.

triton_compile    compiles Inductor's kernels for launching, without a GPU
triton_launch     launches binaries with torch's static launcher, without Triton
user_kernels      a program's kernels in a graph, as plain data and back
autotuning        choosing between templates by time: hands out what Inductor would run
libdevice         the library of functions that a configuration has Triton link
benchmarks        the other end of it: times candidates on a device
"""
