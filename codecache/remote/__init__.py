"""A cache that machines share, behind the local store; every value is authenticated before it is decoded.

    lookup ──▶ local store ──miss──▶ level ──▶ thread, with a deadline ──▶ client ──▶ Redis, Valkey or S3
                    ▲                  │                                     │
                    └── written back ──┴──── values: MAC, size, digest ◀─────┘
    publish ─▶ uploads ─▶ background thread ─▶ client
    miss ────▶ leases ──▶ background thread ─▶ client

values          names and bytes of values in the remote
breaker         decides whether to ask the remote, and for how long: a state machine without clock or network
client          the protocol of clients, and their error
redis_client    Redis and Valkey
s3_client       stores that speak S3
addresses       the client for an address
level           looks entries up in the remote, within a deadline
uploads         sends new entries to the remote, in the background
leases          decides which machine compiles a graph, while the others wait
pending         entries that are left to upload for the next process
"""
