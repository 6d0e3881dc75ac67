"""This machine: its limits, memory and processes, and the user's runtime directory.

limits            CPU affinity, CPU quota, memory limits, file descriptors, and the number of workers
memory            memory that jobs use and that the host has left
processes         death signals, adoption of orphans, killing process groups and marked processes
death_causes      a sentence that says why a worker died
runtime_dir       private directories for sockets and logs
fork_inheritance  sockets, children and locks that a forked child must not keep
held_resources    threads, children and descriptors of this process, fxpool's and others
measurement_lock  measurement locks, across all of a user's processes
"""
