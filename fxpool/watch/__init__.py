"""Watching compiles. Watching never fails the watched compile.

events               states of graphs and time spans, for listeners
configured_watchers  attaches the two below as the settings say
display              writes progress as lines to a terminal or a file
trace                writes a trace file of all processes
"""
