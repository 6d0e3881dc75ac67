"""Shared by the campaigns and by the child programs of `tests/lowering`.

children    runs a command in its own session, with a time limit
places      directories and environments of children, and facts about the tool chain that they share
witness     counts graphs that a process lowers itself, beside fxpool's own counters
"""
