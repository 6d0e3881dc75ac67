"""The code that runs in a worker, and in the zygote that workers are forked from.

    jobs        the functions that a pool calls
    compiler    one request through AOTAutograd and Inductor; in the caller's process for mode ``serialize``
    packages    an exported program through AOTInductor
    wrapper     the generated module as code that needs no compiler to load
    recompute   a kept graph compiled once more and compared: ``fxpool cache verify --recompute``
    random_inputs   inputs to run both on
    warmup      small compiles in the zygote, so that a worker's first job costs what its second does

Imports `request`, `artifact`, `cpp`, `cuda` and `core`.
"""
