"""vLLM as a policy: token ids in, token ids out, over HTTP, with new weights and adapters while it runs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gymcp.agents.policies.http_client import NoAnswer, HttpClient, Response, UnreadableAnswer, open_http_client
from gymcp.agents.policies.openai.wire_format import read_error_text
from gymcp.agents.policies.vllm.keys import find_key
from gymcp.agents.policies.vllm.weight_folder import CAN_BE_UNTIED, has_tied_embeddings, untie_embeddings
from gymcp.errors import ConfigError, PolicyInfraError
from gymcp.types import Json, Sampled, Sampling

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"

MAX_ANSWER_BYTES = 64_000_000
ASK_TIMEOUT_S = 30.0
"""For the list of models."""
_FOR_WEIGHTS = ("/pause", "/collective_rpc", "/update_weight_version")
"""Paths that a server has only if it takes new weights."""
_BUSY = (408, 409, 425, 429)
"""Answers that another attempt may mend, beside those from 500 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    timeout_s: float = 600.0
    """For one request: a sample takes as long as it has tokens, and may wait for others."""
    attempts: int = 8
    """How often a request is tried where the server is busy, broken or away."""
    backoff_s: float = 0.25
    """Before the second attempt; doubled for each further one up to 8 s, with jitter."""
    concurrency: int = 256
    """Samples asked for at a time; more wait here."""
    allow_restricted: bool = False
    """Whether top-p and top-k may be used, although vLLM's logprobs are then of what they leave, not, as `Sampled` has
    it, of the distribution before: fit for evaluating, not for training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What a server says of a model."""

    name: str
    folder: Path | None
    """Where it is loaded from, of an adapter its base; None where that is no folder of this machine."""
    root: str
    """The same in the server's words."""
    context: int


@dataclass(frozen=True, slots=True)
class _Part:
    """What one request has brought: all of a sample, or as much as an update of the weights has let it."""

    ids: list[int]
    logprobs: list[float]
    versions: list[tuple[str, int, int]]
    finish: str


class VllmPolicy:
    """A `Policy`. Made by `open_vllm`."""

    def __init__(self, url: str, http: HttpClient, served: ServedModel, settings: VllmSettings) -> None:
        self.served = served
        self._base = served.name
        self.max_context = served.context
        self.version = "0"
        """Of the weights, as far as this policy has set it; what the server says of a token goes before it."""
        self.spans = True
        """Whether the server tells the weight version of each token; False: it only speaks `/v1/completions`."""
        self._url = url
        self._http = http
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.concurrency)

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Raises PolicyInfraError where the server fails for good.

        A request that an update of the weights has cut short goes on with the tokens it has, so that every token's
        logprob is what a plain forward pass of its own version gives.
        """
        if (sampling.top_p < 1.0 or sampling.top_k) and not self._settings.allow_restricted:
            raise ConfigError(
                "vllm: top-p and top-k change the logprobs it reports: leave them out, or evaluate without tokens"
                " through openai:URL/v1#MODEL (in Python: VllmSettings.allow_restricted)"
            )
        prompt = tuple(prompt_ids)
        most = min(sampling.max_tokens, self.max_context - len(prompt))
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[tuple[str, int, int]] = []
        finish = "length"
        while len(ids) < most:
            seed = None if sampling.seed is None else (sampling.seed + 7919 * len(ids)) % 2**31
            rest = replace(sampling, max_tokens=most - len(ids), seed=seed)
            async with self._slots:
                part = await (self._generate if self.spans else self._complete)([*prompt, *ids], rest)
            versions += [(name, start + len(ids), end + len(ids)) for name, start, end in part.versions]
            ids += part.ids
            logprobs += part.logprobs
            if part.finish != "abort":
                finish = part.finish
                break
        return Sampled(
            prompt_ids=prompt,
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            versions=_merge_spans(versions),
            finish="stop" if finish == "stop" else "length",
        )

    async def load_weights(self, folder: Path, version: str) -> None:
        """The weights become those in `folder`, without a restart. Requests under way go on under the new ones.

        Where their embeddings are tied, the server gets them as two tensors: see
        `gymcp.agents.policies.vllm.weight_folder`. Raises ConfigError if it would keep the old ones at the output,
        because it serves them as one.
        """
        with ExitStack() as stack:
            source = await asyncio.to_thread(stack.enter_context, untie_embeddings(folder))
            self._check_reloads(source)
            await self._post("/pause?mode=abort")
            try:
                arguments = {"weights_path": _absolute(source)}
                await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
                await self._post("/reset_prefix_cache")
                if self.spans:
                    await self._post("/update_weight_version", {"new_version": version})
                self.version = version
            finally:
                await self._post("/resume")

    def _check_reloads(self, source: Path) -> None:
        own = self.served.folder
        if has_tied_embeddings(source) or (own is not None and has_tied_embeddings(own)):
            raise ConfigError(
                f"vllm: {self.served.root}: input and output embeddings are tied, and vLLM reloads only the input's;"
                f" gymcp serve unties those of {', '.join(CAN_BE_UNTIED)} in safetensors; save any other with"
                " tie_word_embeddings=False and an lm_head of its own, and serve that"
            )

    async def tokenize(self, text: str) -> list[int]:
        """The tokens of `text` as the server's own tokenizer has them, without a beginning of its own."""
        body = {"model": self.served.name, "prompt": text, "add_special_tokens": False}
        answer = await self._post("/tokenize", body)
        with _check_answer("/tokenize", answer):
            return [int(token) for token in answer["tokens"]]

    async def load_adapter(self, name: str, folder: Path) -> None:
        """A LoRA adapter, from then on a model of its own name; one of that name is replaced."""
        body = {"lora_name": name, "lora_path": _absolute(folder), "load_inplace": True}
        await self._post("/v1/load_lora_adapter", body, json_answer=False)

    async def use_adapter(self, folder: Path, version: str) -> None:
        """From now on samples come from the served model with this LoRA adapter.

        It gets a name of its own, so that keys and values of no other are reused; the one used before is dropped, so
        no request may be under way.
        """
        name, before = f"{self._base}-{version}", self.served.name
        await self.load_adapter(name, folder)
        if self.spans:
            await self._post("/update_weight_version", {"new_version": version})
        self.served, self.version = replace(self.served, name=name), version
        if before not in (self._base, name):
            await self._post("/v1/unload_lora_adapter", {"lora_name": before}, json_answer=False)

    async def _generate(self, ids: list[int], sampling: Sampling) -> _Part:
        answer = await self._post(
            GENERATE,
            {"model": self.served.name, "token_ids": ids, "sampling_params": _parameters(sampling) | {"logprobs": 0}},
        )
        with _check_answer(GENERATE, answer):
            choice = answer["choices"][0]
            drawn = list(choice["token_ids"] or ())
            content = (choice["logprobs"] or {}).get("content") or ()
            logprobs = [float(entry["logprob"]) for entry in content]
            spans = [(str(s["version"]), int(s["start"]), int(s["end"])) for s in choice.get("weight_versions") or ()]
            return self._part(drawn, logprobs, spans, choice["finish_reason"])

    async def _complete(self, ids: list[int], sampling: Sampling) -> _Part:
        body = {"model": self.served.name, "prompt": ids, "logprobs": 0, "return_token_ids": True} | _parameters(
            sampling
        )
        answer = await self._post(COMPLETIONS, body)
        with _check_answer(COMPLETIONS, answer):
            choice = answer["choices"][0]
            logprobs = [float(value) for value in (choice["logprobs"] or {}).get("token_logprobs") or ()]
            return self._part(list(choice["token_ids"] or ()), logprobs, [], choice["finish_reason"])

    def _part(self, ids: list[int], logprobs: list[float], spans: list[tuple[str, int, int]], finish: str) -> _Part:
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} tokens, but {len(logprobs)} logprobs")
        if not ids and finish != "abort":
            raise ValueError("no tokens")
        return _Part(ids, logprobs, spans or ([(self.version, 0, len(ids))] if ids else []), finish)

    async def _post(self, path: str, body: Json = None, *, json_answer: bool = True) -> Json:
        """The answer's JSON, or None where it is a sentence. Raises PolicyInfraError.

        Tried again where the server is busy, broken or away.
        """
        why = ""
        for attempt in range(self._settings.attempts):
            if attempt:
                pause = min(8.0, self._settings.backoff_s * 2 ** (attempt - 1))
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            try:
                answer = await _ask(self._http, "POST", path, body, self._settings.timeout_s)
            except NoAnswer as error:
                why = str(error)
                continue
            except UnreadableAnswer as error:
                why = str(error)
                break
            if answer.status < 400:
                try:
                    return json.loads(answer.body) if json_answer and answer.body else None
                except (ValueError, RecursionError):
                    why = f"it answered {answer.status} with what is not JSON"
                    continue
            why = f"it answered {answer.status}: {read_error_text(answer.body)}"
            if answer.status == 404 and path.startswith(_FOR_WEIGHTS):
                why += "; it takes no new weights: start it with gymcp serve --training"
            if answer.status < 500 and answer.status not in _BUSY:
                break
        raise PolicyInfraError(f"vllm: {self._url}{path}: {why}")


async def _ask(http: HttpClient, method: str, path: str, body: Json, timeout_s: float) -> Response:
    """One answer. Raises NoAnswer, also where none comes in time, and UnreadableAnswer."""
    content = b"" if body is None else json.dumps(body).encode()
    try:
        async with asyncio.timeout(timeout_s):
            return await http.request(method, path, content, max_bytes=MAX_ANSWER_BYTES)
    except TimeoutError as error:
        raise NoAnswer(f"no answer within {timeout_s:g} s") from error


@asynccontextmanager
async def open_vllm(
    url: str, model: str, settings: VllmSettings | None = None, *, key: str | None = None
) -> AsyncIterator[VllmPolicy]:
    """The policy `vllm:URL#MODEL`, once a first request has been answered.

    `key`: what `vllm serve --api-key` asks for; None: that of a server which gymcp has started here, if it is one.
    Raises ConfigError where nobody answers there or no such model is served.
    """
    settings = settings or VllmSettings()
    key = key or find_key(url)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    root = url.rstrip("/").removesuffix("/v1")
    async with open_http_client(root, headers, proxied=False) as http:
        served = await _ask_for(http, url, model, has_key=bool(key))
        policy = VllmPolicy(root, http, served, settings)
        try:
            probe = await _ask(http, "POST", GENERATE, {"token_ids": []}, settings.timeout_s)
            policy.spans = probe.status != 404
            await policy.sample([1], Sampling(max_tokens=1))
        except (NoAnswer, UnreadableAnswer, PolicyInfraError) as error:
            raise ConfigError(f"vllm: {url}: the first request failed: {error}") from error
        yield policy


async def _ask_for(http: HttpClient, url: str, model: str, *, has_key: bool) -> ServedModel:
    try:
        answer = await _ask(http, "GET", "/v1/models", None, ASK_TIMEOUT_S)
        if answer.status in (401, 403):
            what = "refuses the key" if has_key else "asks for a key"
            raise ConfigError(
                f"vllm: {url} {what} (status {answer.status}); name the variable that holds it with --key-env"
            )
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        told: Any = json.loads(answer.body)
        served = {str(entry["id"]): entry for entry in told["data"]}
        if model not in served:
            raise ConfigError(f"vllm: {url} has no model {model!r}; it has {', '.join(served)}")
        base = served.get(served[model].get("parent"), served[model])
        where = str(base.get("root") or "")
        context = int(served[model].get("max_model_len") or base["max_model_len"])
    except (NoAnswer, UnreadableAnswer, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        why = f"does not answer as vLLM does ({type(error).__name__}: {error})"
        raise ConfigError(f"vllm: {url} {why}; start one with: gymcp serve MODEL") from error
    folder = Path(where)
    is_here = folder.is_absolute() and (folder / "config.json").is_file()
    return ServedModel(name=model, folder=folder if is_here else None, root=where, context=context)


@contextmanager
def _check_answer(path: str, answer: Json) -> Iterator[None]:
    """What is missing from an answer, or of another kind, is the server's failure."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"answered something else: {str(answer)[:200]} ({type(error).__name__}: {error})"
        raise PolicyInfraError(f"vllm: {path}: {what}") from error


def _absolute(folder: Path) -> str:
    """The server has a working folder of its own."""
    return str(folder.resolve())


def _parameters(sampling: Sampling) -> dict[str, Json]:
    """By the names that both endpoints share."""
    parameters: dict[str, Json] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
    }
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    if sampling.stop:
        parameters["stop"] = list(sampling.stop)
    return parameters


def _merge_spans(spans: Sequence[tuple[str, int, int]]) -> tuple[tuple[str, int, int], ...]:
    """Neighbours of one version become one span; empty ones go."""
    merged: list[tuple[str, int, int]] = []
    for version, start, end in spans:
        if merged and merged[-1][0] == version:
            merged[-1] = (version, merged[-1][1], end)
        elif end > start:
            merged.append((version, start, end))
    return tuple(merged)
