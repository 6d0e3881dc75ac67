"""Digests of the program's code that a graph is compiled with.

program_code      digests for the key, which the worker compares with its own
sources           digests of Python code and of everything it refers to
digester          hashes values as tokens
code_references   finds the names that a function refers to, and the package of each
process_state     detects reads of process state: environment, files, clocks
torch_objects     digests tensors, operators with their registrations, and Triton kernels
source_files      digests of files and modules
coverage          lists the items that a digest covers, to explain misses
undigestable      the error for values without a digest
"""
