"""Policies by name, as the command line takes them: ``tiny | local:PATH | vllm:URL#MODEL | openai:URL#MODEL``."""

from __future__ import annotations

import contextlib
import importlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from gymcp.agents.policies.models import ChatModel, Model, TokenModel
from gymcp.agents.policies.openai.client import Endpoint, open_endpoint
from gymcp.agents.policies.prices import Price
from gymcp.agents.policies.text_tool_calls import Templated
from gymcp.agents.policies.vllm.client import VllmSettings, open_vllm
from gymcp.agents.policies.vllm.keys import find_key
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.tool_calls.parsing import choose_format
from gymcp.errors import ConfigError, PolicyInfraError

FORMS = "tiny | local:PATH | vllm:URL#MODEL | openai:URL#MODEL"
TRAINED = Path(__file__).with_name("tiny")
"""The policy that `recipes/tiny.toml` trained on `backoffice`."""
_PROBE = 'Zoë paid 42 €:\n{"name": "pay_back", "arguments": {"amount": 5.25}}'
Kind = Literal["tiny", "local", "vllm", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec:
    text: str
    """As it was written."""
    kind: Kind
    model: str
    """The style of a tiny model with random weights (empty: the trained one), the folder of a local one, else the name
    that the server knows."""
    url: str = ""

    @property
    def who(self) -> str:
        """How messages name it."""
        return f"policy '{self.text}'"

    @property
    def name(self) -> str:
        """Under which its tokens and its price are counted."""
        return "tiny" if self.kind == "tiny" else self.model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    slots: int = 16
    """Samples that the embedded engine draws at a time."""
    device: str | None = None
    """Of the embedded engine; None: the accelerator where there is one."""
    tool_format: str | None = None
    """How a model that is sampled from writes calls; None: as its chat template shows."""
    calls_as_text: bool = False
    """True: an endpoint is not offered tools, they are described to it in words."""
    key: str | None = field(default=None, repr=False)
    requests_per_minute: float | None = None
    concurrency: int = 256
    """Requests to a server at a time."""
    timeout_s: float = 120.0
    tokenizer: Path | None = None
    """Folder of the tokenizer of a model that vLLM serves; None: where the server has its model."""
    prices: Mapping[str, Price] = field(default_factory=dict)


def parse_policy(text: str) -> PolicySpec:
    """The policy that the text names. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    if kind == "tiny":
        return PolicySpec(text=text, kind="tiny", model=rest)
    if kind == "local" and rest:
        return PolicySpec(text=text, kind="local", model=rest)
    if kind in ("vllm", "openai") and rest:
        url, _, model = rest.partition("#")
        if not (_is_address(url) and model):
            path = "/v1" if kind == "openai" else ""
            raise ConfigError(f"policy '{text}': needs an address and a model: {kind}:http://HOST:PORT{path}#MODEL")
        return PolicySpec(text=text, kind="vllm" if kind == "vllm" else "openai", model=model, url=url.rstrip("/"))
    raise ConfigError(f"no policy '{text}'; write {FORMS}")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket, a port that is none
        return False


@contextlib.asynccontextmanager
async def open_model(spec: PolicySpec, options: ModelOptions) -> AsyncIterator[Model]:
    """The model, ready to be asked; what was started for it has ended on the way out. Raises ConfigError."""
    async with contextlib.AsyncExitStack() as stack:
        if spec.kind == "openai":
            policy = await stack.enter_async_context(open_endpoint(_endpoint(spec, options)))
            try:
                await policy.check_answers()
            except PolicyInfraError as error:
                raise ConfigError(f"the policy does not answer: {error}") from error
            yield ChatModel(name=spec.name, policy=Templated(policy) if options.calls_as_text else policy)
            return
        if spec.kind == "vllm":
            yield await _served_model(spec, options, stack)
            return
        folder = _local_folder(spec, stack)
        # says what is missing before weights are loaded
        model = _token_model(spec, options, None, folder, _part("local_model", spec).context_of(folder, spec.who))
        if options.device in (None, "cpu"):
            stack.enter_context(_part("local_model", spec).threads_beside_servers(folder))
        engine = _part("engine.engine", spec).open_engine(folder, slots=options.slots, device=options.device)
        yield replace(model, policy=await stack.enter_async_context(engine))


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
    )


async def _served_model(spec: PolicySpec, options: ModelOptions, stack: contextlib.AsyncExitStack) -> TokenModel:
    """With a tokenizer that is the server's own: another's tokens would be other words to it."""
    settings = VllmSettings(concurrency=options.concurrency)
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
        theirs = await policy.tokenize(_PROBE)
    except PolicyInfraError as error:
        raise ConfigError(f"{spec.who}: the server does not say how it makes tokens: {error}") from error
    if model.renderer.tokenizer.encode(_PROBE, add_special_tokens=False) != theirs:
        raise ConfigError(f"{spec.who}: {folder} holds another tokenizer than the server's; name its own: --tokenizer")
    return model


def _token_model(spec: PolicySpec, options: ModelOptions, policy: Any, folder: Path, context: int) -> TokenModel:
    tokenizer, end_ids = _part("local_model", spec).load_tokenizer(folder, spec.who)
    return TokenModel(
        name=spec.name,
        policy=policy,
        renderer=Renderer(tokenizer, spec.who, end_ids),
        read=choose_format(options.tool_format, tokenizer, spec.who),
        context=context,
        price=_price(spec, options),
    )


def _local_folder(spec: PolicySpec, stack: contextlib.AsyncExitStack) -> Path:
    """Where the model lies; a tiny one of a style is made, for as long as the stack lasts."""
    if spec.kind == "local":
        return Path(spec.model)
    if not spec.model:
        return TRAINED
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gymcp-tiny-")))
    made: Path = _part("tiny_model", spec).make_tiny_model(folder, spec.model)
    return made


def _part(name: str, spec: PolicySpec) -> Any:
    """A module of gymcp that needs the extra `train`: importing it takes seconds, so only who needs it does."""
    try:
        return importlib.import_module(f"gymcp.agents.policies.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"policy '{spec.kind}' needs '{error.name}', which is not installed: pip install 'gymcp[train]'"
        ) from error
