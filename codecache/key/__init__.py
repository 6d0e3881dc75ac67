"""Keys: the facts that a compiled graph depends on, as named and hashed components.

key                   the hashes of the components, and the hash of all
components            the table of components
key_detail            the contents of the components, packed for the entry
cacheable             decides which graphs may be cached, with a reason for each bypass
configured_code       identifies code set in the configuration: passes, estimators, choices
system_facts          facts about this installation and machine
toolchain             facts about the C++ compiler
build_digests         digests of both, by name, for machines that compile for each other
headers               digests of the headers that generated C++ includes, as the compiler lists them
source_toolchain      facts about the compilers of CUDA, ROCm and Halide sources
compiler_programs     digests of the programs that a compiler command runs
compiler_examination  looks at the files of compilers once per graph
probe_cache           stores facts about compilers and distributions until their files change
"""
