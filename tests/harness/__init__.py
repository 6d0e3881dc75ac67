"""Starts programs in fresh processes and reads their reports: for the campaigns, `bench/` and the tests.

children    runs a command in its own session, with a time limit; returns its output, or the report on its last line
loader      runs programs in forks of a process that has imported torch
families    small configurations of architectures of transformers
scripts     for scripts that measure in children of their own file
places      directories and environments of children, and facts about the tool chain that they share

`fxpool.bench.witness` counts graphs that a process lowers itself, beside fxpool's own counters.
"""
