"""The C++ toolchain as Inductor uses it.

commands            flags, commands, collected kernels
cpp_toolchain       the compilers that Inductor would try
instruction_sets    the vector instructions that it may use
"""
