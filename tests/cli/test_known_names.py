"""Names that help and completion show, held equal to those of the code that has them."""

from __future__ import annotations

import pytest

from gymcp import user_code
from gymcp.agents.policies import specs
from gymcp.agents.runner import run
from gymcp.agents.runner.search import searches
from gymcp.agents.strategies import scripted
from gymcp.agents.tool_calls import formats
from gymcp.cli import known_names
from gymcp.cli.completion import RUN_FILES, list_environments
from gymcp.envs import catalog
from gymcp.envs.wrappers import injection, stress
from gymcp.errors import ConfigError
from gymcp.evaluators import compare, metrics, report
from gymcp.evaluators.graders import registry
from gymcp.exchange import export
from gymcp.mcp_servers.packages import lockfile
from gymcp.mcp_servers.sandbox import confined_sandboxes, get_sandbox
from gymcp.store.run_folder import RUN_FILE, TRAINING_FILE
from gymcp.trainers.credit import presets


@pytest.mark.parametrize(
    ("shown", "real"),
    [
        (known_names.AGENTS, run.AGENTS),
        (known_names.AGENTS[:-1], tuple(scripted.SCRIPTED)),
        (known_names.AGENT_FORMS, user_code.FORMS),
        (known_names.ATTACKS, tuple(injection.ATTACKS)),
        (known_names.SEARCHES, tuple(searches.SEARCHES)),
        (known_names.STRESSORS, tuple(stress.STRESSORS)),
        (known_names.POLICY_FORMS, specs.FORMS),
        (known_names.TOOL_FORMATS, tuple(formats.FORMATS)),
        (known_names.METRICS, tuple(compare.METRICS)),
        (known_names.RESOLUTION, compare.RESOLUTION),
        (known_names.MIN_COVERAGE, metrics.MIN_COVERAGE),
        (known_names.GRADERS, tuple(registry.BY_NAME)),
        (known_names.REPORT_FORMATS, report.FORMATS),
        (known_names.EXPORT_FORMATS, export.FORMATS),
        (known_names.PRESETS, tuple(presets.PRESETS)),
        (known_names.LOCK_FILE, str(lockfile.DEFAULT_LOCK)),
        (tuple(list_environments()), catalog.names()),
        (RUN_FILES, (RUN_FILE, TRAINING_FILE)),
    ],
)
def test_a_name_that_is_shown_is_known_to_the_code(shown: object, real: object) -> None:
    assert shown == real


def test_the_sandboxes_that_are_shown_are_all() -> None:
    with pytest.raises(ConfigError, match=f"have {', '.join(known_names.SANDBOXES)}$"):
        get_sandbox("jail")


def test_only_none_does_not_confine() -> None:
    assert tuple(sandbox.name for sandbox in confined_sandboxes()) == known_names.SANDBOXES[:-1]
