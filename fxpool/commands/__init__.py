"""The command `fxpool`.

main      all commands together, and the demonstration
output    shared by all: exit statuses, widths, errors
cache     `stats` and `cache`
server    `serve`, `status` and `stop`
device    `device`
bench     `bench`
doctor    `doctor`
"""
