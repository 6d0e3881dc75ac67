"""Digests of the program's code that a graph is compiled with.

program_code      digests for the key, which the worker compares with its own
sources           digests of Python code and of all that it refers to
digester          hashes values as tokens
code_references   the names that a function refers to, and the package of each
process_state     reads of the process: environment, files, clocks
torch_objects     tensors, operators with their registrations, Triton kernels
source_files      digests of files and modules
coverage          names what a digest covers, for explanations of misses
undigestable      the error for values without a digest
"""
