"""The C++ toolchain as Inductor uses it.

commands            flags, commands, collected kernels
cpp_wrappers        libraries of graphs that are called through C++
embedded_kernels    binaries of Triton kernels, put into such a library
source_kernels      kernels of one library each: C++, Halide, CUDA and ROCm
source_compilers    how nvcc and ROCm's clang are called; what they built before
timed_choices       choices by time between ways to compute on the CPU
cpp_toolchain       the compilers that Inductor would try
instruction_sets    the vector instructions that it may use
"""
