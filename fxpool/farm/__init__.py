"""A farm: machines that compile for other hosts, behind a cluster engine (Dask, Ray).

    a program ──▶ its host's server ──▶ bridge ──▶ the engine's scheduler ──▶ a machine of the farm ──▶ its own server
                  (decides, `pool`)     (one process per host and farm)      (`fxpool farm worker`)     and its workers

engine        the protocols that an engine implements, and the settings that a machine needs
addresses     the engine of an address
bridge        the process that connects a host's server to a farm
machine       runs the farm's jobs on this machine
dask_engine   Dask
ray_engine    Ray
ray_actors    its actors: the registry, and a machine
ray_farm      the state of the registry

The whole graph is one job, its kernels stay on the machine that compiles it. A machine gets a job only if its builds
are the asking host's (`codecache.key.build_digests`). Requests and results are authenticated with the remote cache's
key.
"""
