"""A model that a vLLM server samples from, on the machine of this process: the server that `gymcp serve` starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.policies.specs import ModelOptions, PolicySpec, open_folder, open_model, parse_policy
from gymcp.agents.policies.vllm.client import check_unrestricted
from gymcp.agents.policies.vllm.install import CPU, GPU, vllm_folder, vllm_python
from gymcp.agents.policies.vllm.server import check_served_folder
from gymcp.errors import ConfigError, NodeLost
from gymcp.process_owner import OWNER_VARIABLE
from gymcp.scale import vllm_process
from gymcp.scale.plan import PolicyPlace
from gymcp.types import Sampling


class ServedModel:
    """A model whose policy asks a server."""

    def __init__(self, model: TokenModel, holder: subprocess.Popen[str]) -> None:
        """`holder`: the process of `vllm_process`, which says when the server ends."""
        self.model = model
        self._holder = holder
        self._end = ""

    def check_alive(self) -> None:
        """Raise NodeLost if the server has ended."""
        assert self._holder.stdout is not None
        if not self._end and select.select([self._holder.stdout], [], [], 0)[0]:
            said = self._holder.stdout.readline()
            self._end = f"ended with code {json.loads(said)['code']}" if said else "was killed together with its owner"
        if self._end:
            raise NodeLost(f"its vLLM server {self._end}")


def check_servable(spec: PolicySpec, sampling: Sampling) -> None:
    """Raise UsageError if no vLLM server can sample the model with these settings."""
    check_unrestricted(sampling)
    with ExitStack() as stack:
        check_served_folder(open_folder(spec, stack))


def check_vllm(place: PolicyPlace) -> None:
    """Raise ConfigError if this machine lacks the vLLM that a model in that place needs.

    It is not installed meanwhile, because that takes minutes and gigabytes.
    """
    build = CPU if place.serves_on_cpu else GPU
    if vllm_python(build) is None:
        how = "gymcp serve MODEL --cpu" if place.serves_on_cpu else "gymcp serve MODEL"
        raise ConfigError(
            f"the plan's policy.engine is 'vllm', and {build.package} {build.version} is not installed there"
            f" ({vllm_folder(build)}): type `{how}` there once, which installs it"
        )


@contextlib.asynccontextmanager
async def open_served_model(spec: PolicySpec, options: ModelOptions, place: PolicyPlace) -> AsyncIterator[ServedModel]:
    """The model, once its server has answered; the server ends with the context, and with this process.

    Raises ConfigError.
    """
    async with AsyncExitStack() as stack:
        folder = open_folder(spec, stack)
        holder = await stack.enter_async_context(_hold_server(folder, place))
        assert holder.stdout is not None
        line = await asyncio.to_thread(holder.stdout.readline)
        said = json.loads(line) if line else {"error": "vllm: its process died; the logs of Ray there have its error"}
        if "error" in said:
            raise ConfigError(said["error"])
        server = replace(options, key=said["key"], tokenizer=folder, timeout_s=None, calls_as_text=False, prices={})
        model = await stack.enter_async_context(open_model(parse_policy(said["policy"]), server))
        assert isinstance(model, TokenModel)
        yield ServedModel(model, holder)


@contextlib.asynccontextmanager
async def _hold_server(folder: Path, place: PolicyPlace) -> AsyncIterator[subprocess.Popen[str]]:
    """The process that starts the server, and ends it at the end of its standard input."""
    with await asyncio.to_thread(_start_holder, folder, place) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            yield holder
        finally:
            holder.stdin.close()
            await asyncio.to_thread(holder.stdout.read)


def _start_holder(folder: Path, place: PolicyPlace) -> subprocess.Popen[str]:
    # without an owner, so that no other gymcp takes it for a leftover while it stops the server of a dead actor
    environment = {name: value for name, value in os.environ.items() if name != OWNER_VARIABLE}
    device = "cpu" if place.serves_on_cpu else "gpu"
    return subprocess.Popen(
        [sys.executable, "-P", "-m", vllm_process.__name__, str(folder), device, *place.vllm_args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
