"""Long runs over many cases, beside the tests: `make hunt`, `make conformance`, `make without` and others.

    hunt           programs that are changed in one thing: is a result ever stale?
    conformance    abilities of stock Inductor that fxpool lacks
    without        each system taken out: do its tests fail?
    first_day      small programs in the environments that new users have
    chaos          processes that are killed, malformed frames, hundreds of clients, hosts that are short of something

Each is run with ``tests`` on the path: ``PYTHONPATH=tests python -m campaigns.hunt``. Its own tests lie beside it.
"""
