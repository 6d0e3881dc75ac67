"""Watching compiles. Watching never fails the watched compile.

events        states of graphs and time spans, for listeners
configured    attaches the two below as configured
display       lines on a terminal, or in a file
trace         a trace file of all processes
"""
