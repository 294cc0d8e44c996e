"""All pages of the documentation, built without a warning and looked at in Chromium: `make docs-walk`, as a benchmark.

Light and dark, on a screen and on a phone; docs/site/walk_pages.py says what counts as a defect, and prints each.
Exit code 1 if a page has one, or if the pages cannot be built.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from report_table import Result, options, show

ROOT = Path(__file__).parents[1]
WALK = ROOT / "docs" / "site" / "walk_pages.py"
LAST = re.compile(r"(?P<pages>\d+) pages in (?P<looks>\d+) looks: (?P<defects>\d+) defects, (?P<seconds>\d+) s")


def main() -> None:
    args = options(__doc__, "the first page alone").parse_args()
    subprocess.run(["make", "--silent", "docs"], cwd=ROOT, stdout=sys.stderr, check=True)
    words = [sys.executable, "-u", str(WALK), *(["--only", "index.html"] if args.quick else [])]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, file=sys.stderr, end="")
    found = LAST.search(done.stdout)
    if found is None:
        sys.exit("docs_walk: the walk did not come to its end")
    results = [
        Result(metric="pages", value=int(found["pages"]), unit=f"in {found['looks']} looks each"),
        Result(metric="defects", value=int(found["defects"]), unit="all looks together"),
        Result(metric="seconds", value=int(found["seconds"]), unit="s"),
    ]
    show("docs_walk", results, as_json=args.json)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
