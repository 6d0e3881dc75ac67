"""A cache that machines share, behind the local one: what comes from it is authenticated before it is looked at.

    lookup ──▶ local store ──miss──▶ level ──▶ thread, with a deadline ──▶ client ──▶ Redis, Valkey or S3
                    ▲                  │                                     │
                    └── written back ──┴──── values: MAC, size, digest ◀─────┘
    publish ─▶ uploads ─▶ a thread of its own ─▶ client

values      names and bytes of what lies in the remote
breaker     whether the remote is asked, and how long it may take: a state machine without clock or network
client      what a client of a remote can do, and how it fails
redis_client    Redis and Valkey
s3_client   stores that speak S3
addresses   the client for an address
level       looks into the remote, within a deadline
uploads     sends new entries to the remote, in the background
pending     entries that no process has uploaded yet, for the next one
"""
