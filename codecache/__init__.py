"""Has this been compiled before, and may it be served here? Knows torch; knows no process.

graph_codec         a graph as plain data: hashed into its key, and sent to a worker
target_names        the names of its functions and operators in another process
graph_decoder       rebuilds the graph from it there
key                 named components, their hashes, and the hash of those
key_detail          what is in the components, packed: an entry keeps it
encoded_values      shows encoded arguments, functions and tensors
comparison          two keys: which item of which component differs
graph_comparison    two graphs: which nodes were changed, added, removed
nearest             the kept graph that is nearest to one, and what differs
misses              why a graph was not served
coverage            what digests of code cover, by name
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
source_toolchain    facts about the compilers of CUDA, ROCm and Halide sources
programs            digests of the programs a compiler command runs
probe_cache         facts about compilers and distributions, kept until their files change
cacheable           decides which graphs may be kept, and why not
guards              conditions on sizes, as data: saved, shown, evaluated, replayed
guard_arithmetic    evaluates the nodes of guards on plain numbers
entry               the record of one compiled graph, and its bytes
store               a directory of entries and the blobs they need
layout              where they lie in it; listing and removing files
bounds              limits of such a directory
eviction            decides what a directory that is over its bounds loses
collector           looks at the directory, and removes what was decided
pace                lets other threads run during long work
index               how much there is in it, so that publishers need not look: an accelerator
base_store          a store below the user's own, read-only
remote              a cache that machines share, behind the local one
authentication      MACs over what came from elsewhere
listing             the entries of a store, for who looks again and again
bundle              moves entries between directories in one file
bundle_file         the byte format of that file
blobs               private files, and immutable blobs in them
contents            measures a cache directory by kind; clears it
host_statistics     what all processes with a cache directory counted, by day
quarantine          graphs that killed workers, and the limits they exceeded
failed              levels at which a graph can't be compiled for the cache
demoted_stages      stages that were measured slower than the one before
"""
