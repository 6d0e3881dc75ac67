"""Shows that tests fail where a system is missing: takes each out of a copy of the project and runs tests for it.

    removals     the texts to take out for each row of docs/architecture/systems.md, and the tests that must fail
    project      a copy of the project with its own environment, in which a text is replaced for a while

`make without`, or `PYTHONPATH=tests python -m campaigns.without --rows 4,5`, runs it.
"""
