"""The ways in which an episode ends."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """Ending of an episode: the one table that decides what counts, what trains and what is run again.

    ================  ======  ===========  ======  ==============
    outcome           score   in the mean  trains  on resume
    ================  ======  ===========  ======  ==============
    scored            graded  yes          yes     kept
    budget_exhausted  graded  yes          yes     kept
    agent_error       0       yes          yes     kept
    env_infra         None    no           no      retried, capped
    policy_infra      None    no           no      retried, capped
    timeout           None    no           no      retried, capped
    grader_error      None    no           no      re-graded
    cancelled         None    no           no      run again
    ================  ======  ===========  ======  ==============

    ``agent_error``: the agent itself failed. It raised, gave something that is no action, held up the event loop, or
    gave nothing usable in several answers. It is never tried again.

    An agent cannot take its episode out of the mean by what it does to a world. The following end an episode as
    ``budget_exhausted``, graded on the state before that step, provided that the state could be read after the reset:

    * a call that takes a server over a limit of its sandbox, whatever server it is;
    * a call that blocks a server that declares its state: the server had answered until then, and its only thread is in
      the agent's call. A call that is slow in Python is interrupted, which is an error result;
    * files that no longer have a digest: over a limit of `DigestLimits`, never at rest, gone, or such that they end
      every process that reads them;
    * a declared state that cannot be read: no JSON, NaN, an infinity, an integer of more than 4,300 digits, half a
      character, more than 100 levels, longer than a message may be, or reading it raises or does not end.

    * in the last attempt of a start of the run: a server that ends, breaks its protocol or hangs after a call of the
      agent, if all attempts, at least two, also those of earlier starts, ended so (`gymcp.envs.worlds.server_losses`).

    The content of a tool result or of an agent's message never ends an episode: it is an observation or part of the
    record. The following have no score, because it is not certain that the agent caused them: a single loss of a server
    that ends by itself, breaks its protocol or sends a key that its state does not have (``env_infra``), or declares no
    state and hangs (``timeout``); a server elsewhere that is out of reach; a machine whose kernel ended processes for
    lack of memory; a world that has no digest after its reset, a helper process or a machine that fails, and an answer
    for which the harness's event loop was too late (``env_infra``).

    Capped: a run tries a job up to `Schedule.max_attempts` times, and so does every resume, until `MAX_RESUMES` times
    as many attempts have failed; then the job stays lost. Re-graded: from the record, without running anything.
    """

    SCORED = "scored"
    BUDGET_EXHAUSTED = "budget_exhausted"
    AGENT_ERROR = "agent_error"
    ENV_INFRA = "env_infra"
    POLICY_INFRA = "policy_infra"
    TIMEOUT = "timeout"
    GRADER_ERROR = "grader_error"
    CANCELLED = "cancelled"

    @property
    def has_score(self) -> bool:
        """True if the episode counts: it has a score, enters means and may train."""
        return self in (Outcome.SCORED, Outcome.BUDGET_EXHAUSTED, Outcome.AGENT_ERROR)

    @property
    def is_infra(self) -> bool:
        """True if the harness failed: counted apart, retried up to a cap."""
        return self in (Outcome.ENV_INFRA, Outcome.POLICY_INFRA, Outcome.TIMEOUT)

    @property
    def runs_again(self) -> bool:
        """True if nothing was recorded that could be graded: another attempt may replace the episode."""
        return self.is_infra or self is Outcome.CANCELLED
