"""Has this been compiled before, and may it be served here? Knows torch; knows no process.

graph_codec         a graph as plain data: hashed into its key, and sent to a worker
graph_decoder       rebuilds the graph from it there
key                 named components, their hashes, and the hash of those
program_code        the program's code that a graph is compiled with: hashed for the key, checked in the worker
sources             digests of Python code and of what it refers to
digester            hashes values as tokens
code_references     what a function refers to, and whose that is
process_state       what code reads of its process: environment, files, clocks
torch_objects       tensors, operators with what is registered for them, Triton kernels
source_files        digests of files and modules
undigestable        the error for values without a digest
configured          identifies configured code for keys
system              facts about this installation and machine
toolchain           facts about the C++ compiler
programs            digests of the programs a compiler command runs
probe_cache         facts about compilers and distributions, kept until their files change
cacheable           decides which graphs may be kept, and why not
guards              conditions on sizes, as data: saved, shown, evaluated, replayed
guard_arithmetic    evaluates the nodes of guards on plain numbers
entry               the record of one compiled graph, and its bytes
store               a directory of entries and the blobs they need
base_store          a store below the user's own, read-only
blobs               private files, and immutable blobs in them
contents            measures a cache directory by kind; clears it
quarantine          graphs that killed workers, and the limits they exceeded
failed              levels at which a graph can't be compiled for the cache
demoted_stages      stages that were measured slower than the one before
"""
