"""Checks of all that fxpool needs, for ``fxpool doctor``.

findings         results of checks, and how checks are run
host             Python, torch, compiler, directories, limits: checked in this process, without importing torch
farm             machines that compile for this host, if there is a farm
compile_trial    a compile and a hit in two processes, and the GPUs in a third
"""
