"""Checks of answers: to gold, of tools that no gold calls, and of servers whose state cannot be seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gymcp.agents.runner.tool_trials import ToolTrial, UnusedTools
from gymcp.cli.servers.verdicts import Verdict
from gymcp.envs.audit.repeats import AnswerDifference, AnswerPair, find_difference
from gymcp.envs.episodes.network_failures import speaks_of_no_network
from gymcp.evaluators.graders.matching import calls_with_results
from gymcp.evaluators.json_diff import brief
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Suite, Trajectory

MAX_NAMES = 10
"""Tools that a detail names."""
MAX_ANSWER_CHARS = 160
"""Characters of a tool's answer that a detail quotes."""
MAX_EXAMPLES = 3
"""Volatile parts that a detail quotes."""


def judge_gold(suite: Suite, ended: Iterable[Trajectory]) -> Verdict:
    """Verdict on the answers to gold: a gold call of each task succeeds, unless the suite says that none does.

    The score of gold may not show it: a grader can count calls that failed, or read the final text alone.
    `ended`: episodes of the oracle, one for each task.
    """
    scored = sorted((each for each in ended if each.score is not None), key=lambda each: each.task)
    made = {each.task: calls for each in scored if (calls := list(calls_with_results(each)))}
    if not made:
        return Verdict(check="gold", passed=True, detail="not applicable: no gold call was played", applies=False)
    errors = {
        task: f"{task}: {call.name}({brief(call.arguments)}): {result.content[:MAX_ANSWER_CHARS]}"
        for task, calls in made.items()
        for _, call, result in reversed(calls)
        if result.is_error
    }
    total = sum(map(len, made.values()))
    good = sum(not result.is_error for calls in made.values() for _, _, result in calls)
    fruitless = {task for task, calls in made.items() if all(result.is_error for _, _, result in calls)}
    undeclared = sorted(fruitless - suite.gold_fails)
    outdated = sorted((suite.gold_fails & made.keys()) - fruitless)
    detail = f"{good}/{total} gold calls succeeded"
    if undeclared:
        detail += (
            f", in {len(undeclared)} of {len(made)} tasks none; first: {errors[undeclared[0]]}; give the task a call "
            "that succeeds or, if its calls are meant to fail, name it in Suite(gold_fails=...)"
        )
    elif outdated:
        detail += f"; {outdated[0]} is in Suite(gold_fails=...), and a call of its gold succeeds: take it out"
    elif errors:
        detail += f"; first error: {next(iter(errors.values()))}"
    return Verdict(check="gold", passed=not undeclared and not outdated, detail=detail)


def judge_unused_tools(unused: UnusedTools) -> Verdict:
    """Verdict on the tools that no gold calls: none has a defect."""
    tools = len(unused.servers)
    if not unused.trials:
        return Verdict(check="tools", passed=True, detail=f"gold calls each of the {tools} tools")
    by_ending: dict[str, list[ToolTrial]] = {}
    for trial in unused.trials:
        by_ending.setdefault(trial.ending, []).append(trial)
    names = _enumerate([trial.tool for trial in unused.trials])
    parts = [f"gold never calls {len(unused.trials)} of {tools} tools: {names}"]
    if count := len(unused.trials) - len(by_ending.get("not called", ())):
        parts.append(f"called once each: {len(by_ending.get('answered', ()))} of {count} answered")
    if errors := by_ending.get("error"):
        parts.append(
            f"{len(errors)} answered with an error, such as {errors[0].tool}: {errors[0].text[:MAX_ANSWER_CHARS]}"
        )
    offline = [trial.tool for trial in by_ending.get("error", []) if speaks_of_no_network(trial.text)]
    if offline:
        parts.append(f"{len(offline)} failed for want of network: {_enumerate(offline)}")
    if left := by_ending.get("not called"):
        parts.append(f"{len(left)} not called: {left[0].text}")
    defects = by_ending.get("defect", [])
    if defects:
        failures = "; ".join(f"{trial.tool}: {trial.text[:MAX_ANSWER_CHARS]}" for trial in defects[:MAX_NAMES])
        parts.insert(0, f"{len(defects)} have a defect: {failures}")
    return Verdict(check="tools", passed=not defects, detail="; ".join(parts))


def judge_answers(servers: Sequence[ServerSpec], gold: Sequence[AnswerPair], unused: UnusedTools) -> Verdict:
    """Verdict on the servers whose state cannot be seen: two fresh starts answer the same calls alike.

    `gold`: answers of two plays of gold. The other calls are those of the tools that no gold calls.
    """
    blind = [server.name for server in servers if not server.shows_state]
    if not blind:
        detail = "not applicable: every server shows its state"
        return Verdict(check="answers", passed=True, detail=detail, applies=False)
    pairs = [pair for pair in gold if unused.servers.get(pair.tool) in blind]
    pairs += _pair_trials(unused.trials)
    if not pairs:
        detail = f"not applicable: no call of {', '.join(blind)} was made"
        return Verdict(check="answers", passed=True, detail=detail, applies=False)
    differences = [difference for pair in pairs if (difference := find_difference(pair))]
    real = [difference for difference in differences if not difference.volatile]
    alike = len(pairs) - len(real)
    detail = f"{alike}/{len(pairs)} calls of {', '.join(blind)} had the same answer on two fresh starts"
    if real:
        named = _enumerate(list(dict.fromkeys(difference.tool for difference in real)))
        detail += f"; not of {named}; first: {real[0].tool}: {real[0].text}"
    if volatile := _list_volatile(differences):
        detail += f"; not compared: {volatile}"
    return Verdict(check="answers", passed=not real, detail=detail)


def _pair_trials(trials: Sequence[ToolTrial]) -> Iterator[AnswerPair]:
    for trial in trials:
        if trial.again is not None and trial.ending in ("answered", "error"):
            yield AnswerPair(tool=trial.tool, first=trial.text, second=trial.again)


def _list_volatile(differences: Sequence[AnswerDifference]) -> str:
    """The volatile parts that differed, one for each tool."""
    by_tool: dict[str, str] = {}
    for difference in differences:
        if difference.volatile:
            by_tool.setdefault(difference.tool, difference.text)
    examples = [f"{tool}: {text}" for tool, text in list(by_tool.items())[:MAX_EXAMPLES]]
    return ", ".join(examples) + (f" and {len(by_tool) - MAX_EXAMPLES} more" if len(by_tool) > MAX_EXAMPLES else "")


def _enumerate(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
