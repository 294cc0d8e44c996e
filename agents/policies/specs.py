"""Policies by name, in the command line's form: ``tiny | smollm2 | local:PATH | vllm:URL#MODEL | openai:URL#MODEL``."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gymcp.agents.policies.models import ChatModel, Model, TokenModel
from gymcp.agents.policies.openai.client import Endpoint, open_endpoint
from gymcp.agents.policies.pretrained.folders import locate_model
from gymcp.agents.policies.pretrained.smollm2 import NAME, parse_precision
from gymcp.agents.policies.prices import Price
from gymcp.agents.policies.text_tool_calls import TextToolCallPolicy
from gymcp.agents.policies.vllm.client import VllmSettings, open_vllm
from gymcp.agents.policies.vllm.keys import find_key
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.tool_calls.parsing import choose_format
from gymcp.errors import ConfigError, PolicyInfraError
from gymcp.http_headers import is_http_address
from gymcp.paths import restore_path

FORMS = "tiny | smollm2 | local:PATH | vllm:URL#MODEL | openai:URL#MODEL"
TRAINED = Path(__file__).with_name("tiny")
"""Folder of the policy that `recipes/tiny.toml` trained on `backoffice`."""
_PROBE = 'Zoë paid 42 €:\n{"name": "pay_back", "arguments": {"amount": 5.25}}'
"""Text whose tokens show whether a tokenizer is the server's own."""
Kind = Literal["tiny", "smollm2", "local", "vllm", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    """A policy as the user named it."""

    text: str
    """The name as the user wrote it."""
    kind: Kind
    model: str
    """Style of a tiny model with random weights (empty for the trained one), precision of smollm2, folder or hub id of
    a local model, or the name of the model on the server."""
    url: str = ""

    @property
    def who(self) -> str:
        """The policy's name in error messages."""
        return f"policy '{self.text}'"

    @property
    def name(self) -> str:
        """The name under which tokens and prices are counted."""
        return self.kind if self.kind in ("tiny", NAME) else restore_path(self.model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Settings with which a policy is opened; each kind of policy uses some of them."""

    slots: int = 16
    """Number of requests that the embedded engine samples at a time."""
    device: str | None = None
    """Device of the embedded engine; None for the accelerator if there is one, else the CPU."""
    tool_format: str | None = None
    """Name of the format in which a token model writes calls; None for the one that its chat template shows."""
    calls_as_text: bool = False
    """True to describe the tools to an endpoint in the system prompt instead of offering them."""
    key: str | None = field(default=None, repr=False)
    requests_per_minute: float | None = None
    """Maximum number of requests per minute to an endpoint; None for no limit."""
    concurrency: int = 256
    """Maximum number of requests in flight to a server."""
    timeout_s: float | None = None
    """Maximum seconds of one answer; None: the agent that asks has a limit."""
    stream: bool = False
    """True to ask an endpoint for answers as streams."""
    tokenizer: Path | None = None
    """Folder of the tokenizer of a model that vLLM serves; None for the folder that the server loaded it from."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Prices by model; if there are any, the model must be among them."""


def parse_policy(text: str) -> PolicySpec:
    """The policy named by the text. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    if kind == "tiny":
        return PolicySpec(text=text, kind="tiny", model=rest)
    if kind == NAME:
        return PolicySpec(text=text, kind="smollm2", model=parse_precision(rest, f"policy '{text}'"))
    if kind == "local" and rest:
        return PolicySpec(text=text, kind="local", model=rest)
    if kind in ("vllm", "openai") and rest:
        url, _, model = rest.partition("#")
        if not (is_http_address(url) and model):
            path = "/v1" if kind == "openai" else ""
            raise ConfigError(f"policy '{text}': needs an address and a model: {kind}:http://HOST:PORT{path}#MODEL")
        return PolicySpec(text=text, kind="vllm" if kind == "vllm" else "openai", model=model, url=url.rstrip("/"))
    raise ConfigError(f"no policy '{text}'; write {FORMS}")


def locate_folder(spec: PolicySpec) -> Path:
    """The folder of a model that runs in this process, of kind ``local`` or ``smollm2``; what is missing is fetched.

    Raises UsageError if it cannot be had.
    """
    return locate_model(spec.text if spec.kind == NAME else spec.model, spec.who)


def open_folder(spec: PolicySpec, stack: contextlib.AsyncExitStack | contextlib.ExitStack) -> Path:
    """The folder of a model without a server; one with random weights is made, and removed when the stack closes.

    Raises UsageError if it cannot be had.
    """
    if spec.kind in ("local", NAME):
        return locate_folder(spec)
    if not spec.model:
        return TRAINED
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gymcp-tiny-")))
    model_folder: Path = _import_part("tiny_model", spec).make_tiny_model(folder, spec.model)
    return model_folder


@contextlib.asynccontextmanager
async def open_model(spec: PolicySpec, options: ModelOptions) -> AsyncIterator[Model]:
    """The model, ready for requests; everything started for it is closed on exit. Raises ConfigError."""
    async with contextlib.AsyncExitStack() as stack:
        if spec.kind == "openai":
            policy = await stack.enter_async_context(open_endpoint(_endpoint(spec, options)))
            try:
                await policy.check_reachable()
            except PolicyInfraError as error:
                raise ConfigError(f"the policy does not answer: {error}") from error
            yield ChatModel(name=spec.name, policy=TextToolCallPolicy(policy) if options.calls_as_text else policy)
            return
        if spec.kind == "vllm":
            yield await _open_vllm_model(spec, options, stack)
            return
        folder = open_folder(spec, stack)
        model = _read_local_model(spec, options, folder)  # before the weights, because this reports what is missing
        if options.device in (None, "cpu"):
            stack.enter_context(_import_part("local_model", spec).limit_threads(folder))
        engine = _import_part("engine.engine", spec).open_engine(folder, slots=options.slots, device=options.device)
        yield replace(model, policy=await stack.enter_async_context(engine))


def read_without_weights(spec: PolicySpec, options: ModelOptions) -> TokenModel:
    """A model that runs in a process of gymcp, whose weights another machine loads: its policy is to be replaced.

    Raises ConfigError.
    """
    with contextlib.ExitStack() as stack:
        return _read_local_model(spec, options, open_folder(spec, stack))


def _read_local_model(spec: PolicySpec, options: ModelOptions, folder: Path) -> TokenModel:
    context = _import_part("local_model", spec).read_context_length(folder, spec.who)
    return _token_model(spec, options, None, folder, context)


def _price(spec: PolicySpec, options: ModelOptions) -> Price:
    if options.prices and spec.name not in options.prices:
        raise ConfigError(f"--prices: none for model '{spec.name}'; the file has {', '.join(options.prices)}")
    return options.prices.get(spec.name, Price())


def _endpoint(spec: PolicySpec, options: ModelOptions) -> Endpoint:
    return Endpoint(
        url=spec.url,
        model=spec.model,
        key=find_key(spec.url) or options.key,
        price=_price(spec, options),
        timeout_s=options.timeout_s,
        requests_per_minute=options.requests_per_minute,
        concurrency=options.concurrency,
        stream=options.stream,
    )


async def _open_vllm_model(spec: PolicySpec, options: ModelOptions, stack: contextlib.AsyncExitStack) -> TokenModel:
    """The model of a vLLM server. Its tokenizer must be the server's own, because ids of another mean other words."""
    settings = VllmSettings(concurrency=options.concurrency, sample_timeout_s=options.timeout_s)
    policy = await stack.enter_async_context(
        open_vllm(spec.url, spec.model, settings, key=find_key(spec.url) or options.key)
    )
    folder = options.tokenizer or policy.served.folder
    if folder is None:
        raise ConfigError(
            f"{spec.who}: its model lies in '{policy.served.root}', which is no folder of this machine: name one that"
            " holds the same tokenizer with --tokenizer"
        )
    model = _token_model(spec, options, policy, folder, policy.max_context)
    try:
        server_ids = await policy.tokenize(_PROBE)
    except PolicyInfraError as error:
        raise ConfigError(f"{spec.who}: the server does not say how it makes tokens: {error}") from error
    if model.renderer.tokenizer.encode(_PROBE, add_special_tokens=False) != server_ids:
        raise ConfigError(f"{spec.who}: {folder} holds another tokenizer than the server's; name its own: --tokenizer")
    return model


def _token_model(spec: PolicySpec, options: ModelOptions, policy: Any, folder: Path, context: int) -> TokenModel:
    tokenizer, end_ids = _import_part("local_model", spec).load_tokenizer(folder, spec.who)
    return TokenModel(
        name=spec.name,
        policy=policy,
        renderer=Renderer(tokenizer, spec.who, end_ids),
        parse_calls=choose_format(options.tool_format, tokenizer, spec.who),
        context=context,
        price=_price(spec, options),
        timeout_s=None if spec.kind == "vllm" else options.timeout_s,  # a server's client has its own
    )


def _import_part(name: str, spec: PolicySpec) -> Any:
    """A module of this package that needs the extra `train`; imported on demand, because importing takes seconds."""
    try:
        return importlib.import_module(f"gymcp.agents.policies.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"policy '{spec.kind}' needs '{error.name}', which is not installed: pip install 'gymcp[train]'"
        ) from error
