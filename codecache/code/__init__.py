"""Prove that the program's code which a graph is compiled with is the same in another process, and digest it.

grammar          the accepted values, functions, attributes and instructions, as tables
proof            walks code and digests it, or refuses it
operator_code    the program's operators with their registrations
triton_code      the program's Triton kernels
program_code     everything for one graph: digests for the key, which the worker compares with its own
packages         functions of installed packages, by the packages' files
code_references  the code and plain data that a function refers to
writer           the interface of a proof for the modules of operators, kernels and packages
source_files     digests of files and packages
"""
