"""Check ATIF documents with the Harbor in a folder: one per line on standard input, objections on standard output."""

import json
import sys

sys.path.append(sys.argv[1])  # last: pydantic is that of this interpreter

from harbor.models.trajectories import Trajectory  # type: ignore[import-not-found]
from harbor.utils.trajectory_validator import TrajectoryValidator  # type: ignore[import-not-found]

for line in sys.stdin:
    document = json.loads(line)
    checker = TrajectoryValidator()
    checker.validate(document)
    kept = None
    if not checker.errors:
        kept = Trajectory.model_validate_json(line).to_json_dict()  # as JSON, which is stricter about types
    print(json.dumps({"errors": checker.errors, "kept": kept}), flush=True)
