"""Triton kernels: Inductor's, and a program's own.

triton_compile    one of Inductor's kernels to what a launch needs, without a GPU
triton_launch     launches binaries with torch's static launcher, without Triton
user_kernels      a program's kernels in a graph, as plain data and from it
autotuning        choosing between templates by time: what would be run is handed out
benchmarks        the other end of it: timing candidates on a device
"""
