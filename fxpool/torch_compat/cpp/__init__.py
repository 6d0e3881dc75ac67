"""The C++ toolchain as Inductor uses it.

commands            flags, commands, collected kernels
cpp_wrappers        libraries of graphs that are called through C++
embedded_kernels    binaries of Triton kernels, embedded in such a library
source_kernels      kernels of one library each: C++, Halide, CUDA and ROCm
source_compilers    calls of nvcc and ROCm's clang, and reuse of their earlier builds
timed_choices       choices by time between candidates on the CPU
cpp_toolchain       the compilers that Inductor would try
included            the headers that generated C++ may include, and commands that list them
mkl_linear          weights packed for MKL, and what they were packed from
instruction_sets    the vector instructions that it may use
"""
