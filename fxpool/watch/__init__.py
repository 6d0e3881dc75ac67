"""Watching compiles. What only shows never fails what it shows.

events        where each graph is, and what took how long: for whoever listens
configured    attaches the two below as the settings say
display       lines on a terminal, or in a file
trace         a trace file of all processes
"""
