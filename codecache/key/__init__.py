"""Keys: the facts that a compiled graph depends on, as named and hashed components.

key               components, their hashes, and the hash of those
key_detail        the contents of the components, packed for the entry
cacheable         decides which graphs may be cached, and why not
configured        identifies configured code: passes, estimators, choices
system            facts about this installation and machine
toolchain         facts about the C++ compiler
source_toolchain  facts about the compilers of CUDA, ROCm and Halide sources
programs          digests of the programs that a compiler command runs
probe_cache       facts about compilers and distributions, stored until their files change
"""
