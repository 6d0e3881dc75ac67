"""Results of other JITs in fxpool's store: `fxpool.once`, and Triton's cache (`fxpool.triton`). Imports no torch.

    calls               `once`: one call, from its key to its result
    product_keys        the digest of a key
    products            looks products up in the stores and the remote, and publishes them
    turns               one builder at a time: threads of a process, processes of a host
    tree_content        a directory as a list of files and blobs, and back
    target_directories  directories that the caller named

    once ──▶ directory filled before? ──▶ store ──▶ turn of thread and process ──▶ store, remote ──▶ turn of machine
                                                                                    └──▶ build ──▶ publish, upload

A product is an ordinary entry of the store with the level `once`, so limits, eviction, the `cache` commands, bundles,
MAC and the remote apply to it. `codecache.store.held_directories` has the directories that fxpool names itself.
"""
