"""``python -m campaigns.without``: take systems out of a copy of the project, one at a time, and see that tests fail.

All of these tests have to pass there first.

python -m campaigns.without                 all rows of docs/architecture/systems.md; half an hour
python -m campaigns.without --rows 4,5      some
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence

from harness.places import scratch

from .project import Project
from .removals import REMOVALS, Removal

_FAILED = 1  # pytest's exit status where tests failed; others say that they could not be run


def seen_by(project: Project, removal: Removal, test: str) -> tuple[bool, str]:
    """Whether a test, or a fixture of its, fails without something, and how."""
    with project.without(removal):
        status, output = project.test([test])
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", output, re.MULTILINE)
    if status == _FAILED and failed:
        return True, f"{failed[0][0].removeprefix('tests/')}: {_reason(output) or failed[0][1]}"
    return False, "it passes" if status == 0 else f"pytest's exit status {status}:\n{output[-2000:]}"


def _reason(output: str) -> str:
    """The first line of the first error that pytest shows."""
    found = re.search(r"^E +(\S.*)$", output, re.MULTILINE)
    return found[1][:150] if found else ""


def chosen(rows: str) -> Sequence[Removal]:
    """The removals of some rows, or of all. Raises SystemExit for a row without removals."""
    known = {str(one.row) for one in REMOVALS}
    wanted = {one.strip() for one in rows.split(",")} if rows else known
    if left := wanted - known:
        raise SystemExit(f"no such rows: {', '.join(sorted(left))}")
    return [one for one in REMOVALS if str(one.row) in wanted]


def main() -> int:
    """The command line's exit status: 1 if a removal is not seen."""
    parser = argparse.ArgumentParser(prog="without", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", default="", help="numbers of systems, with commas between them")
    asked = parser.parse_args()
    removals = chosen(asked.rows)
    unseen = 0
    with scratch("without-") as place:
        project = Project(place)
        # Otherwise a test that fails for want of something else would seem to see a removal.
        print("with all systems:", flush=True)
        status, output = project.test(list(dict.fromkeys(test for one in removals for test in one.tests)))
        print("  " + output.strip().splitlines()[-1], flush=True)
        if status:
            print(output)
            return status
        for removal in removals:
            for test in removal.tests:
                began = time.monotonic()
                seen, how = seen_by(project, removal, test)
                unseen += not seen
                what = "fails without it" if seen else "NOT SEEN"
                print(f"{removal.row:>2} {what} ({time.monotonic() - began:.0f} s): {test}\n   {how}", flush=True)
    print(f"{unseen} not seen" if unseen else "every removal is seen")
    return int(bool(unseen))


if __name__ == "__main__":
    sys.exit(main())
