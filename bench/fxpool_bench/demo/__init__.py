"""``fxpool demo``: compares fxpool with stock Inductor and eager on two models, each measurement in a fresh process.

demonstration    the plan of measurements, and the table of results
child            the process of one measurement
processes        starts measurement processes with their environment, and reads their results
own_server       the server that the runs with fxpool share
"""
