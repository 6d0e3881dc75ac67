"""The C++ toolchain as Inductor uses it.

compile_commands  flags, commands, collected kernels
cpp_wrappers      libraries of graphs that are called through C++
source_kernels    kernels of one library each: C++, Halide, CUDA and ROCm
source_compilers  calls of nvcc and ROCm's clang, and reuse of their earlier builds
timed_choices     choices by time between candidates on the CPU
cpp_toolchain     the compilers that Inductor would try
included_headers  the headers that generated C++ may include, and commands that list them
instruction_sets  the vector instructions that it may use
"""
