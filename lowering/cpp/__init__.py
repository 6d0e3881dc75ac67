"""C++ kernels: compiled side by side into one library, and called from it.

    kernels               a graph's kernels, in few units that are compiled as sub-jobs
    unit_source           C++ of one unit, and how Python calls its kernels
    library               the library in the process that calls it
    executable            loads it from a file system on which nothing may be executed
    host_facts            what the host's toolchain can do, found once per host
    precompiled_header    the header of all kernels, compiled once per host and flags

Imports no other part of `lowering`.
"""
