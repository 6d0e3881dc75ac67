"""The first day of a real user: small programs in the environments that users have, each judged by what it left.

    row            what a row is: a program, the environment it runs in, what is expected
    verdict        judges what was seen; no process and no clock
    witness        what a process of a row sees of itself; part of every program
    environment    a row's own directories and environment, and a tool chain that is known
    running        has a row's processes run, twice, and looks for what they left behind
    needs          what a row needs of the machine, and why it is skipped without
    packages       installs what only rows need, beside the ordinary environment
    screen         what a terminal shows after a program wrote to it

and the rows by subject: `checkout`, `processes`, `interpreters`, `streams`, `directories`, `homes`, `limits`,
`machines`, `compilers`, `frameworks`.

`make first-day`, or `PYTHONPATH=tests python -m campaigns.first_day`, runs all and prints a table.
"""
