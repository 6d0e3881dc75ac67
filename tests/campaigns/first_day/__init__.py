"""The first day of a real user: small programs in the environments that users have, each judged by what it left.

    row            a row: a program, its environment, the expected results
    verdict        judges the results; no process and no clock
    witness        reports on the process of a row; part of every program
    environment    a row's own directories and environment, and a tool chain that is known
    running        has a row's processes run, twice, and looks for what they left behind
    needs          requirements of rows on the machine, and the reason for skipping
    packages       installs packages that only rows need, beside the ordinary environment
    screen         the text on a terminal after a program wrote to it

and the rows by subject: `checkout`, `processes`, `interpreters`, `streams`, `directories`, `homes`, `limits`,
`machines`, `compilers`, `frameworks`.

`make first-day`, or `PYTHONPATH=tests python -m campaigns.first_day`, runs all and prints a table.
"""
