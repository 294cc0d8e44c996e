"""The exceptions of gymcp, one class per boundary that can break.

::

    GymcpError
    ├── UsageError                      the caller asked for something that is not there (command line: exit 2)
    │   ├── ConfigError                 an unknown name, a malformed environment file, a contradictory option
    │   ├── SandboxUnavailable          this machine lacks what the sandbox needs
    │   ├── IntegrityError              a download or a lock entry does not have the expected hash
    │   ├── NoActiveEpisode             a step without an active episode: before reset, after its end, after close
    │   └── StoreError                  a run folder that cannot be written, read, or continued
    ├── EnvInfraError                   the harness's side of an environment broke: the episode has no score
    │   ├── ServerDied                  the server process ended, or closed its pipe, in the middle of an episode
    │   │   └── ServerLimitExceeded     a call used up its time, or its server's memory: graded as it stands
    │   ├── Undigestible                a state has no digest or cannot be recorded: in a step graded as it stood before
    │   ├── CannotFork                  a live server cannot be copied: its calls are replayed on a fresh one instead
    │   ├── ServerTimeout               the server did not answer in time
    │   ├── ProtocolError               the server sent something that is not MCP, too long, or too deep
    │   ├── CassetteMiss                a call is not on the cassette that is played instead of the server
    │   ├── DirtyReset                  a fresh world differs from the one that its task has always started from
    │   ├── SnapshotError               a world cannot be copied, or its copy is not the same world
    │   └── NodeLost                    a machine that played episodes for the run is gone, or does not answer
    ├── PolicyInfraError                the policy's server could not be reached: the episode has no score
    │   ├── AnswerTimeout               it was reached, and its answer took too long: the episode is graded as it stands
    │   ├── PolicyRefused               it was reached and refuses the request: wrong key, no such model, a bad request
    │   └── PromptTooLong               the prompt is longer than the model's context
    └── GraderError                     the grader raised: the episode can be graded again

`tests/test_errors.py` compares the drawing with the classes of this module.

A tool that fails is not an exception: it is a `ToolResult` with ``is_error=True`` that the agent sees.
"""

from __future__ import annotations


class GymcpError(Exception):
    """Base of all errors that gymcp raises on purpose. The message says who, what, why, and what there is instead."""


class UsageError(GymcpError):
    """Error that the caller can mend: the command line prints one line and exits with 2."""


class ConfigError(UsageError):
    """An unknown name, a malformed environment file, or options that contradict each other."""


class SandboxUnavailable(UsageError):
    """This machine lacks what the chosen sandbox needs."""


class IntegrityError(UsageError):
    """A download or a locked file does not have the expected hash."""


class NoActiveEpisode(UsageError):
    """No episode is active that could be stepped or copied; `gymcp.envs.errors` combines it with Gymnasium's errors."""


class StoreError(UsageError):
    """A run folder that cannot be written, read, or continued."""


class EnvInfraError(GymcpError):
    """The harness's side of an environment broke; the episode's outcome is ``env_infra`` and it has no score."""


class ServerDied(EnvInfraError):
    """The server process ended, or closed its pipe, in the middle of an episode."""


class ServerLimitExceeded(ServerDied):
    """A call took its server over a limit of its sandbox, or did not end in time at a server that declares its state.

    In a step of an episode the agent caused it: the episode ends and is graded on its last known state.
    """


class Undigestible(EnvInfraError):
    """The state of a server has no digest or cannot be recorded: over a limit, never at rest, or not JSON.

    After a reset it is the environment's fault. In a step the agent caused it: the episode ends and is graded on the
    state before that step.
    """


class CannotFork(EnvInfraError):
    """A live server cannot be copied as it is; its calls can still be replayed on a fresh server."""


class ServerTimeout(EnvInfraError):
    """The server did not answer in time."""


class ProtocolError(EnvInfraError):
    """The server sent something that is not MCP, too long, or too deeply nested."""


class CassetteMiss(EnvInfraError):
    """A call is not on the cassette that is played instead of the server; the server itself is never called."""


class DirtyReset(EnvInfraError):
    """A fresh world differs from the one that its task has always started from."""


class SnapshotError(EnvInfraError):
    """A world cannot be copied, or its copy is not the same world."""


class NodeLost(EnvInfraError):
    """A machine that played episodes for the run is gone, or does not answer; its episodes are played again."""


class PolicyInfraError(GymcpError):
    """The policy's server could not be reached; the episode's outcome is ``policy_infra``."""


class AnswerTimeout(PolicyInfraError):
    """An answer took longer than a request may take. The time is the agent's: its episode is ``budget_exhausted``."""


class PolicyRefused(PolicyInfraError):
    """The policy's server refuses this request; asking again does not help."""


class PromptTooLong(PolicyInfraError):
    """The prompt is longer than the model's context; an agent shortens it or stops."""


class GraderError(GymcpError):
    """The grader raised; the outcome is ``grader_error`` and the trajectory can be graded again."""
