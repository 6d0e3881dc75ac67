"""``fxpool.explain`` and ``fxpool cache explain``: why graphs were compiled, and how two keys differ.

    process    this process: its latest misses, and each bypass, fallback and switch that it counted
    keys       two entries, or an entry and the nearest other entry

They compare the details stored in entries (`codecache.explain.comparison`, `codecache.explain.misses`);
`fxpool.reasons` explains the counted reasons.
"""
