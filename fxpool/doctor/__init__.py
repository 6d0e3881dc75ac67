"""Checks of all that fxpool needs, for ``fxpool doctor``.

findings         what a check finds, and how checks are run
host             Python, torch, compiler, directories, limits: looked at from here, and no torch is imported
compile_trial    a compile and a hit in two processes, and the GPUs in a third
"""
