"""The demonstration: two models beside stock Inductor and eager, each measured in a process of its own.

demonstration    what is measured, and the table
child            one measurement
processes        processes that are forked for it, their environment and what they print
own_server       the server that fxpool's runs share
"""
