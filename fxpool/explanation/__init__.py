"""``fxpool.explain`` and ``fxpool cache explain``: why graphs were compiled, and in what two keys differ.

    process    this process: its last misses, and each bypass, fallback and switch that it counted
    keys       two entries, or one beside the nearest other one

They compare what entries keep (`codecache.explain.comparison`, `codecache.explain.misses`); what a reason means is in
`fxpool.reasons`.
"""
