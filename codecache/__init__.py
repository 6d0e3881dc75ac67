"""Has this been compiled before, and may it be served here? Knows torch; knows no process.

graph_codec         a graph as plain data: hashed into its key, and sent to a worker
graph_decoder       and the graph made from it there
key                 named components, each hashed, and the hash of those
program_code        the program's code that a graph is compiled with: in the key, and compared in the worker
sources             digests of Python code and of what it refers to
digester            writes values as tokens into a hash
code_references     what a function refers to, and whose that is
process_state       what code reads of its process: environment, files, clocks
torch_objects       tensors, operators with what is registered for them, Triton kernels
source_files        digests of files and modules
undigestable        the error for what has no digest
configured          what stands in a key for code in the configuration
system              facts about this installation and machine
toolchain           facts about the C++ compiler
programs            what a compiler's command runs, by content
probe_cache         what was found out about a compiler or a distribution, until its file changes
cacheable           which graphs may be kept, and the name each refusal is counted under
guards              conditions on sizes, as data: saved, shown, evaluated, replayed
guard_arithmetic    what their nodes mean on plain numbers
entry               the record of one compiled graph, and its bytes
store               a directory of entries and the blobs they need
base_store          one that is below the user's own, and only read
blobs               files that nobody else could have written
contents            what lies in the directory, by kind; clears it
quarantine          graphs that killed workers, and the limits they went over
failed              levels at which a graph can't be compiled for being kept
demoted_stages      stages that were timed and found slower than the one before
"""
