"""The C++ toolchain as Inductor drives it.

commands            flags, commands, collected kernels
cpp_toolchain       which compilers Inductor would try
instruction_sets    which vector instructions it may use
"""
