"""The code that runs in a worker, and in the zygote that workers are forked from.

    jobs             the functions that a pool calls
    compiler         runs a request through AOTAutograd and Inductor; in the caller's process for mode ``serialize``
    farm_job         compiles requests of other hosts, on a farm's machine
    reused_graphs    takes the code of equal graphs from the cache
    packages         compiles an exported program with AOTInductor
    wrapper_linking  links the generated module into code that loads without a compiler
    recompute_job    compiles a cached graph again and compares: ``fxpool cache verify --recompute``
    warmup           small compiles in the zygote, so that a worker's first job is as fast as later ones

Imports `request`, `artifact`, `cpp`, `cuda` and `core`.
"""
