"""The cache directory: entries, the blobs they need, limits, and records about graphs.

store            LocalStore: looks up and publishes entries
entry            the record of one compiled graph, and its bytes
blobs            private files, and immutable blobs in them
layout           names and paths of the files in the directory
catalogue        walks the directory and yields a record of each file
base_store       a read-only store below the user's own
cache_limits     limits of a directory
index            the directory's size so far, so that publishing need not scan it
eviction         decides what a directory over its limits loses
collector        scans the directory and removes what eviction chose
listing          lists entries repeatedly, for the dashboard
removal          removes all files of a directory, or precompiled headers
host_statistics  counts of all processes with this directory, by day
quarantine       graphs that killed workers, and the limits they exceeded
small_records    small records of failed levels, demoted stages and more
held_directories  directories of files for other JITs, which stay while they are in use
kernel_files     compiled kernels by content, for the graphs that come later
"""
