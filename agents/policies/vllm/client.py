"""vLLM as a policy: token ids in, token ids out, over HTTP; weights and adapters can be replaced while it runs."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gymcp.agents.policies.http_client import (
    HttpClient,
    LateAnswer,
    NoAnswer,
    Response,
    UnreadableAnswer,
    open_http_client,
)
from gymcp.agents.policies.openai.wire_format import read_error_text
from gymcp.agents.policies.vllm.drafts import DraftCounts, read_draft_counts
from gymcp.agents.policies.vllm.keys import find_key
from gymcp.agents.policies.vllm.weight_folder import CAN_BE_UNTIED, has_tied_embeddings, untie_embeddings
from gymcp.errors import AnswerTimeout, ConfigError, PolicyInfraError
from gymcp.types import Json, RequestTimes, Sampled, Sampling

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"

MAX_ANSWER_BYTES = 64_000_000
"""Maximum number of bytes of an answer."""
MODELS_TIMEOUT_S = 30.0
"""Maximum seconds of the request for the list of models, or for the metrics."""
MAX_BACKOFF_S = 8.0
"""Maximum seconds of a pause between two attempts, before jitter."""
_WEIGHT_PATHS = ("/pause", "/collective_rpc", "/update_weight_version")
"""Paths that a server has only if it takes new weights."""
_RETRY_STATUSES = (408, 409, 425, 429)
"""Statuses below 500 after which a request is tried again."""
_SEED_STRIDE = 7919
"""Difference between the seeds of two parts of one sample, per token between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Limits of the requests to a vLLM server."""

    timeout_s: float = 600.0
    """Maximum seconds of a request that draws nothing, such as one with new weights, and of the first sample."""
    sample_timeout_s: float | None = None
    """Maximum seconds of a request for a sample, which is not asked for again; None: the asking agent has a limit."""
    attempts: int = 8
    """Maximum number of attempts at a request, if the server is busy, broken or unreachable."""
    backoff_s: float = 0.25
    """Seconds before the second attempt; doubled for each further one up to `MAX_BACKOFF_S`, with jitter."""
    concurrency: int = 256
    """Maximum number of samples requested at a time; more wait in the client."""
    allow_restricted: bool = False
    """True to allow top-p and top-k. vLLM's logprobs are then those of the restricted distribution, but `Sampled` is
    defined with those before the restriction: fit for evaluation, not for training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model in the server's list."""

    name: str
    folder: Path | None
    """Folder that the model, or the base of an adapter, was loaded from; None if this machine has no such folder."""
    root: str
    """Folder of the model as the server names it."""
    context: int
    """Maximum number of tokens of prompt and sample together."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The tokens from one request: a whole sample, or the part before an update of the weights cut it short."""

    ids: list[int]
    logprobs: list[float]
    versions: list[tuple[str, int, int]]
    finish: str
    seconds: float
    """Seconds of the request, without earlier attempts."""


class VllmPolicy:
    """A `Policy`. Made by `open_vllm`."""

    def __init__(self, url: str, http: HttpClient, served: ServedModel, settings: VllmSettings) -> None:
        self.served = served
        self._base = served.name
        self.max_context = served.context
        self.version = "0"
        """Version of the weights that this policy has set; used for tokens whose version the server does not report."""
        self.reports_versions = True
        """True if the server reports the weight version of each token; False if it has only `/v1/completions`."""
        self._url = url
        self._http = http
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.concurrency)

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Sample an answer. Raises AnswerTimeout, PolicyInfraError once all attempts at a request have failed.

        A request that an update of the weights has cut short is continued from the tokens it has, so that every token's
        logprob is the one that a plain forward pass with the weights of its own version gives.
        """
        if not self._settings.allow_restricted:
            check_unrestricted(sampling)
        prompt = tuple(prompt_ids)
        max_tokens = min(sampling.max_tokens, self.max_context - len(prompt))
        ids: list[int] = []
        logprobs: list[float] = []
        versions: list[tuple[str, int, int]] = []
        finish, request_s = "length", 0.0
        while len(ids) < max_tokens:
            seed = None if sampling.seed is None else (sampling.seed + _SEED_STRIDE * len(ids)) % 2**31
            rest = replace(sampling, max_tokens=max_tokens - len(ids), seed=seed)
            async with self._slots:
                part = await (self._generate if self.reports_versions else self._complete)([*prompt, *ids], rest)
            versions += [(name, start + len(ids), end + len(ids)) for name, start, end in part.versions]
            ids += part.ids
            logprobs += part.logprobs
            request_s += part.seconds
            if part.finish != "abort":
                finish = part.finish
                break
        return Sampled(
            prompt_ids=prompt,
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            versions=_merge_spans(versions),
            finish="stop" if finish == "stop" else "length",
            request_times=RequestTimes(request_s=request_s),
        )

    async def load_weights(self, folder: Path, version: str) -> None:
        """Load the weights in `folder` without a restart. Requests under way continue with the new weights.

        Tied embeddings are given to the server as two tensors: see `gymcp.agents.policies.vllm.weight_folder`. Raises
        ConfigError if the server would keep the old embeddings at the output, because it has loaded them as one tensor.
        """
        with ExitStack() as stack:
            source = await asyncio.to_thread(stack.enter_context, untie_embeddings(folder))
            self._check_reloads(source)
            await self._post("/pause?mode=abort")
            try:
                arguments = {"weights_path": _absolute(source)}
                await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": arguments})
                await self._post("/reset_prefix_cache")
                if self.reports_versions:
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
        """The tokens of `text` from the server's own tokenizer, without special tokens."""
        body = {"model": self.served.name, "prompt": text, "add_special_tokens": False}
        answer = await self._post("/tokenize", body)
        with _check_answer("/tokenize", answer):
            return [int(token) for token in answer["tokens"]]

    async def count_drafts(self) -> DraftCounts | None:
        """The drafted and the accepted tokens so far; None if the server drafts nothing or gives no metrics."""
        try:
            answer = await _request(self._http, "GET", "/metrics", None, MODELS_TIMEOUT_S)
        except (NoAnswer, UnreadableAnswer):
            return None
        return read_draft_counts(answer.body.decode(errors="replace")) if answer.status == 200 else None

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load a LoRA adapter as a model with this name; an adapter with the same name is replaced."""
        body = {"lora_name": name, "lora_path": _absolute(folder), "load_inplace": True}
        await self._post("/v1/load_lora_adapter", body, json_answer=False)

    async def use_adapter(self, folder: Path, version: str) -> None:
        """Sample from the served model with this LoRA adapter from now on.

        The adapter gets a name of its own, so that no keys and values of another one are reused. The previous adapter
        is unloaded, so no request may be under way.
        """
        name, previous = f"{self._base}-{version}", self.served.name
        await self.load_adapter(name, folder)
        if self.reports_versions:
            await self._post("/update_weight_version", {"new_version": version})
        self.served, self.version = replace(self.served, name=name), version
        if previous not in (self._base, name):
            await self._post("/v1/unload_lora_adapter", {"lora_name": previous}, json_answer=False)

    async def _generate(self, ids: list[int], sampling: Sampling) -> _Part:
        answer, seconds = await self._post_timed(
            GENERATE,
            {"model": self.served.name, "token_ids": ids, "sampling_params": _parameters(sampling) | {"logprobs": 0}},
        )
        with _check_answer(GENERATE, answer):
            choice = answer["choices"][0]
            sampled_ids = list(choice["token_ids"] or ())
            content = (choice["logprobs"] or {}).get("content") or ()
            logprobs = [float(entry["logprob"]) for entry in content]
            spans = [(str(s["version"]), int(s["start"]), int(s["end"])) for s in choice.get("weight_versions") or ()]
            return self._part(sampled_ids, logprobs, spans, choice["finish_reason"], seconds)

    async def _complete(self, ids: list[int], sampling: Sampling) -> _Part:
        body = {"model": self.served.name, "prompt": ids, "logprobs": 0, "return_token_ids": True} | _parameters(
            sampling
        )
        answer, seconds = await self._post_timed(COMPLETIONS, body)
        with _check_answer(COMPLETIONS, answer):
            choice = answer["choices"][0]
            logprobs = [float(value) for value in (choice["logprobs"] or {}).get("token_logprobs") or ()]
            return self._part(list(choice["token_ids"] or ()), logprobs, [], choice["finish_reason"], seconds)

    def _part(
        self, ids: list[int], logprobs: list[float], spans: list[tuple[str, int, int]], finish: str, seconds: float
    ) -> _Part:
        if len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} tokens, but {len(logprobs)} logprobs")
        if not ids and finish != "abort":
            raise ValueError("no tokens")
        return _Part(ids, logprobs, spans or ([(self.version, 0, len(ids))] if ids else []), finish, seconds)

    async def _post(self, path: str, body: Json = None, *, json_answer: bool = True) -> Json:
        """The answer's JSON; None if it is empty or not `json_answer`. Raises PolicyInfraError."""
        return (await self._post_timed(path, body, json_answer=json_answer))[0]

    async def _post_timed(self, path: str, body: Json, *, json_answer: bool = True) -> tuple[Json, float]:
        """The answer's JSON, and the seconds of the attempt that brought it. Raises PolicyInfraError.

        The request is tried again if the server is busy, broken or unreachable, but not if a sample takes too long.
        """
        why, is_sample = "", path in (GENERATE, COMPLETIONS)
        timeout_s = self._settings.sample_timeout_s if is_sample else self._settings.timeout_s
        for attempt in range(self._settings.attempts):
            if attempt:
                pause_s = min(MAX_BACKOFF_S, self._settings.backoff_s * 2 ** (attempt - 1))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            sent = time.perf_counter()
            try:
                answer = await _request(self._http, "POST", path, body, timeout_s)
            except NoAnswer as error:
                why = str(error)
                if is_sample and isinstance(error, LateAnswer):
                    raise AnswerTimeout(f"vllm: {self._url}{path}: {why}") from error
                continue
            except UnreadableAnswer as error:
                why = str(error)
                break
            if answer.status < 400:
                try:
                    content = json.loads(answer.body) if json_answer and answer.body else None
                    return content, time.perf_counter() - sent
                except (ValueError, RecursionError):
                    why = f"it answered {answer.status} with what is not JSON"
                    continue
            why = f"it answered {answer.status}: {read_error_text(answer.body)}"
            if answer.status == 404 and path.startswith(_WEIGHT_PATHS):
                why += "; it takes no new weights: start it with gymcp serve --training"
            if answer.status < 500 and answer.status not in _RETRY_STATUSES:
                break
        raise PolicyInfraError(f"vllm: {self._url}{path}: {why}")


def check_unrestricted(sampling: Sampling) -> None:
    """Raise ConfigError for settings with which vLLM's logprobs are not those of the whole distribution."""
    if sampling.top_p < 1.0 or sampling.top_k:
        raise ConfigError(
            "vllm: top-p and top-k change the logprobs it reports: leave them out, or evaluate without tokens"
            " through openai:URL/v1#MODEL (in Python: VllmSettings.allow_restricted)"
        )


async def _request(http: HttpClient, method: str, path: str, body: Json, timeout_s: float | None) -> Response:
    """The answer to one request. Raises NoAnswer, as LateAnswer after a timeout, and UnreadableAnswer."""
    content = b"" if body is None else json.dumps(body).encode()
    return await http.request(method, path, content, max_bytes=MAX_ANSWER_BYTES, timeout_s=timeout_s)


@asynccontextmanager
async def open_vllm(
    url: str, model: str, settings: VllmSettings | None = None, *, key: str | None = None
) -> AsyncIterator[VllmPolicy]:
    """The policy `vllm:URL#MODEL`, once a first request has been answered.

    `key`: the key of `vllm serve --api-key`; None to look it up among the servers that gymcp has started on this
    machine. Raises ConfigError if no server answers or it does not serve the model.
    """
    settings = settings or VllmSettings()
    key = key or find_key(url)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    root = url.rstrip("/").removesuffix("/v1")
    async with open_http_client(root, headers, proxied=False) as http:
        served = await _find_model(http, url, model, has_key=bool(key))
        policy = VllmPolicy(root, http, served, settings)
        try:
            probe = await _request(http, "POST", GENERATE, {"token_ids": []}, settings.timeout_s)
            policy.reports_versions = probe.status != 404
            async with asyncio.timeout(settings.timeout_s):
                await policy.sample([1], Sampling(max_tokens=1))
        except TimeoutError as error:
            limit = f"no answer within {settings.timeout_s:g} s"
            raise ConfigError(f"vllm: {url}: the first request failed: {limit}") from error
        except (NoAnswer, UnreadableAnswer, PolicyInfraError) as error:
            raise ConfigError(f"vllm: {url}: the first request failed: {error}") from error
        yield policy


async def _find_model(http: HttpClient, url: str, model: str, *, has_key: bool) -> ServedModel:
    """The model in the server's list. Raises ConfigError."""
    try:
        answer = await _request(http, "GET", "/v1/models", None, MODELS_TIMEOUT_S)
        if answer.status in (401, 403):
            what = "refuses the key" if has_key else "asks for a key"
            raise ConfigError(
                f"vllm: {url} {what} (status {answer.status}); name the variable that holds it with --key-env"
            )
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        listing: Any = json.loads(answer.body)
        served = {str(entry["id"]): entry for entry in listing["data"]}
        if model not in served:
            raise ConfigError(f"vllm: {url} has no model {model!r}; it has {', '.join(served)}")
        base = served.get(served[model].get("parent"), served[model])
        root = str(base.get("root") or "")
        context = int(served[model].get("max_model_len") or base["max_model_len"])
    except (NoAnswer, UnreadableAnswer, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        why = f"does not answer as vLLM does ({type(error).__name__}: {error})"
        raise ConfigError(f"vllm: {url} {why}; start one with: gymcp serve MODEL") from error
    folder = Path(root)
    is_local = folder.is_absolute() and (folder / "config.json").is_file()
    return ServedModel(name=model, folder=folder if is_local else None, root=root, context=context)


@contextmanager
def _check_answer(path: str, answer: Json) -> Iterator[None]:
    """Turns an error while reading an answer's fields into a PolicyInfraError: the server has sent something else."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        what = f"answered something else: {str(answer)[:200]} ({type(error).__name__}: {error})"
        raise PolicyInfraError(f"vllm: {path}: {what}") from error


def _absolute(folder: Path) -> str:
    """The absolute path of a folder: the server has another working folder."""
    return str(folder.resolve())


def _parameters(sampling: Sampling) -> dict[str, Json]:
    """The sampling parameters by the names that both endpoints share."""
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
    """The spans with neighbours of one version joined and empty spans left out."""
    merged: list[tuple[str, int, int]] = []
    for version, start, end in spans:
        if merged and merged[-1][0] == version:
            merged[-1] = (version, merged[-1][1], end)
        elif end > start:
            merged.append((version, start, end))
    return tuple(merged)
