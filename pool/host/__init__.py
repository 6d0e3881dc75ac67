"""This machine: its limits, memory and processes, and the user's runtime directory.

limits        how many workers: affinity, CPU quota, memory
memory        memory used by jobs, and free on the host
processes     death signals, adoption of orphans, killing process groups
causes        why a worker ended, in a sentence
runtime_dir   directories of sockets and logs
inherited     sockets, children and locks that a forked child must not keep
marks         marks on processes and all their descendants
turns         turns to measure, over all processes
predecessor   ends a hung server after it has been replaced
"""
