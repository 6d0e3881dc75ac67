"""The demonstration: two models beside stock Inductor and eager, each measured in a process of its own.

demonstration    the plan of measurements, and the table
child            one measurement
processes        starts measurement processes, with their environment, and reads their results
own_server       the server that fxpool's runs share
"""
