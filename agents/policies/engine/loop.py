"""The thread that runs the engine's model: it gives requests slots, schedules forward passes and ends samples."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from gymcp.agents.policies.engine.forward import SlotForward
from gymcp.agents.policies.engine.request import Request, StopRule
from gymcp.agents.policies.engine.slots import Slots
from gymcp.errors import PolicyInfraError
from gymcp.types import Sampled


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts of the work since the engine was opened."""

    requests: int = 0
    """Requests sampled to their end."""
    prompt_tokens: int = 0
    """Tokens of the prompts that were given a slot."""
    computed_tokens: int = 0
    """Prompt tokens, and after an update of the weights also sampled ones, that went through the model."""
    copied_tokens: int = 0
    """Tokens whose keys and values were copied from another slot with the same prefix."""
    kept_tokens: int = 0
    """Tokens whose keys and values were already in the slot, from an earlier turn."""
    sampled_tokens: int = 0
    forwards: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A change of the weights, made by calling `change` between two forward passes."""

    change: Callable[[], None]
    version: str
    done: Future[None] = field(default_factory=Future)


class EngineLoop:
    """Runs rounds on a separate thread: apply updates, admit requests, compute parts of prompts, sample one token each.

    At most `prefill_tokens` prompt tokens are computed per round, which bounds how long a prompt delays other requests.
    """

    def __init__(
        self,
        model: SlotForward,
        slots: int,
        *,
        version: str,
        stop: StopRule,
        prefill_tokens: int,
        deterministic: bool,
    ) -> None:
        self.version = version
        self.stats = EngineStats()
        self._model = model
        self._slots = Slots(slots, model.max_context)
        self._stop = stop
        self._prefill_tokens = prefill_tokens
        self._one_by_one = deterministic and not model.batch_invariant
        """True if requests must share no forward pass, no keys and no values."""
        self._inbox: queue.SimpleQueue[Request | Update | None] = queue.SimpleQueue()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        """Requests that have a slot, in the order of admission."""
        self._answers: list[tuple[Request, Sampled | Exception]] = []
        self._closing = False
        self._end_reason: Exception | None = None
        """The reason why the thread has ended; None while it runs."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gymcp-engine", daemon=True)

    @property
    def forward_pass(self) -> str:
        """Name of the forward pass."""
        return self._model.name

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, item: Request | Update) -> None:
        """Hand a request or an update to the thread. Raises PolicyInfraError if the thread has ended."""
        with self._lock:
            if self._end_reason:
                raise PolicyInfraError(f"embedded engine: {self._end_reason}")
            self._inbox.put(item)

    def close(self, timeout_s: float) -> None:
        """End the thread; requests that are not finished get a PolicyInfraError."""
        self._inbox.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise PolicyInfraError(f"embedded engine: a forward pass has not ended within {timeout_s:g} s")

    def _run(self) -> None:
        reason: Exception = RuntimeError("it is closed")
        try:
            while not self._closing:
                self._read_inbox()
                if not self._closing:
                    self._round()
                self._deliver()
        except Exception as error:  # the boundary: all waiting requests must get the error
            reason = error
        finally:
            self._end(reason)

    def _end(self, reason: Exception) -> None:
        with self._lock:
            self._end_reason = reason
        while not self._inbox.empty():
            self._take(self._inbox.get())
        for request in [*self._running, *self._waiting]:
            self._answers.append((request, PolicyInfraError(f"embedded engine: {reason}")))
        self._deliver()
        self._model.close()

    def _read_inbox(self) -> None:
        """Take all items from the inbox; wait for one only if there is no request to work on."""
        if not (self._running or self._waiting):
            self._take(self._inbox.get())
        while not self._inbox.empty():
            self._take(self._inbox.get())

    def _take(self, item: Request | Update | None) -> None:
        if item is None:
            self._closing = True
        elif isinstance(item, Request):
            self._waiting.append(item)
        elif self._closing or self._end_reason:
            item.done.set_exception(PolicyInfraError("embedded engine: it is closed"))
        else:
            self._update(item)

    def _update(self, update: Update) -> None:
        """Apply the update. Requests under way keep their tokens; their keys and values are computed again."""
        try:
            update.change()
        except Exception as error:  # the boundary: the trainer's own code
            update.done.set_exception(error)
            return
        self.version = update.version
        self._model.reload()
        self._slots.forget()
        for at, request in enumerate(self._running):
            self._find_source(request, [earlier.slot for earlier in self._running[:at]])
        update.done.set_result(None)

    def _round(self) -> None:
        for request in [request for request in self._running if request.cancelled]:
            self._leave(request)
        self._admit()
        for request in self._running:
            self._copy_prefix(request)
        try:
            if self._model.ragged and not self._one_by_one:
                self._compute_ragged()
            else:
                self._prefill()
                self._decode()
        except Exception as error:  # the boundary: out of memory, a device that is gone, a model that does not fit
            failure = PolicyInfraError(f"embedded engine: forward pass failed: {type(error).__name__}: {error}")
            for request in list(self._running):
                self._leave(request, failure)
            self._slots.forget()

    def _admit(self) -> None:
        while self._waiting:
            request = self._waiting[0]
            if request.cancelled:
                self._waiting.popleft()
                continue
            slot = self._slots.assign(np.array(request.prompt, dtype=np.int32))
            if slot is None:
                return
            self._waiting.popleft()
            request.slot = slot
            if self._one_by_one:
                self._slots.filled[slot] = 0
            self._running.append(request)
            kept = int(self._slots.filled[slot])
            self._count(prompt_tokens=len(request.prompt), kept_tokens=kept)
            self._find_source(request, None)
            self._copy_prefix(request)  # at once: the next request may be given the slot it is copied from

    def _find_source(self, request: Request, among: Sequence[int] | None) -> None:
        """Set the slot to copy from: one of an earlier request, so that no two requests wait for each other."""
        request.source = -1
        if not self._one_by_one:
            request.source, _ = self._slots.find_source(request.slot, among)

    def _copy_prefix(self, request: Request, *, wait: bool = True) -> None:
        """Copy the common prefix from the source slot, once that has computed all of it or will compute no more."""
        slots, slot = self._slots, request.slot
        if request.source < 0:
            return
        planned = int(slots.prefix_lengths(slots.tokens[slot, : slots.length[slot]])[request.source])
        planned = min(planned, int(slots.length[slot]) - 1)
        ready = min(planned, int(slots.filled[request.source]))
        if wait and ready < planned and slots.busy[request.source]:
            return
        if ready > slots.filled[slot]:
            self._model.copy(request.source, slot, ready)
            self._count(copied_tokens=ready - int(slots.filled[slot]))
            slots.filled[slot] = ready
        request.source = -1

    def _leave(self, request: Request, answer: Sampled | Exception | None = None) -> None:
        """Make the request's slot idle. Requests that wait for a prefix of it copy the part that has been computed."""
        for other in self._running:
            if other.source == request.slot:
                self._copy_prefix(other, wait=False)
        self._running.remove(request)
        self._slots.release(request.slot)
        if answer is not None:
            self._answers.append((request, answer))

    def _compute_ragged(self) -> None:
        """Compute the next token of every request that waits for one, and prompts, the first admitted first."""
        sizes: dict[int, int] = {}
        budget = self._prefill_tokens
        ready = [request for request in self._running if request.source < 0]
        for request in ready:
            missing = self._missing(request)
            size = 1 if missing == 1 else min(missing, budget)
            if size > 0:
                sizes[request.slot] = size
            if missing > 1:
                budget -= size
                self._count(computed_tokens=size)
        if sizes:
            self._forward([request for request in ready if request.slot in sizes], sizes)

    def _prefill(self) -> None:
        """Compute prompts, the first admitted first, in batches of chunks of similar length."""
        budget = self._prefill_tokens
        todo = [request for request in self._running if request.source < 0 and self._missing(request) > 1]
        while todo and budget > 0:
            # deterministic: the chunks of a request must always be cut at the same places
            lead = min(self._missing(todo[0]), self._prefill_tokens if self._one_by_one else budget)
            batch, width = [todo[0]], lead
            for request in todo[1:] if not self._one_by_one else ():
                size = min(self._missing(request), budget)
                if lead <= 2 * size and size <= 2 * lead and max(width, size) * (len(batch) + 1) <= budget:
                    batch.append(request)
                    width = max(width, size)
            chosen = {request.slot for request in batch}
            todo = [request for request in todo if request.slot not in chosen]
            budget -= width * len(batch)
            sizes = {request.slot: min(self._missing(request), width) for request in batch}
            self._count(computed_tokens=sum(sizes.values()))
            self._forward(batch, sizes)

    def _decode(self) -> None:
        """Sample one token for every request that has all its tokens but the last in the cache."""
        batch = [request for request in self._running if request.source < 0 and self._missing(request) == 1]
        for rows in [[request] for request in batch] if self._one_by_one else [batch] if batch else []:
            self._forward(rows, {request.slot: 1 for request in rows})

    def _missing(self, request: Request) -> int:
        return int(self._slots.length[request.slot] - self._slots.filled[request.slot])

    def _forward(self, batch: Sequence[Request], sizes: dict[int, int]) -> None:
        """Compute so many more tokens of each request's slot; sample a token for each one that is then complete."""
        slots = self._slots
        starts = {slot: int(slots.filled[slot]) for slot in sizes}
        chunks = {slot: slots.tokens[slot, start : start + sizes[slot]].tolist() for slot, start in starts.items()}
        rows = sorted(starts)
        first, last = rows[0], rows[-1] + 1
        in_vain = not self._model.ragged and not self._one_by_one and max(sizes.values()) == 1
        if in_vain and last - first <= 2 * len(rows):
            # computing some slots in vain, with garbage behind their tokens, is cheaper than copying all the others
            rows = list(range(first, last))
        logits = self._model.forward(
            rows,
            [starts.get(slot, int(slots.filled[slot])) for slot in rows],
            [chunks.get(slot, [0]) for slot in rows],
            window=not self._one_by_one,
        )
        self._count(forwards=1)
        for slot, chunk in chunks.items():
            slots.filled[slot] += len(chunk)
        complete = [request for request in batch if self._missing(request) == 0]
        if complete:
            index = [rows.index(request.slot) for request in complete]
            self._sample(complete, logits if index == list(range(len(rows))) else logits[index])

    def _sample(self, batch: Sequence[Request], logits: torch.Tensor) -> None:
        samples = self._model.draw(
            logits, [request.sampling for request in batch], [request.uniform() for request in batch]
        )
        self._count(sampled_tokens=len(batch))
        for request, token, logprob in zip(batch, samples.ids, samples.logprobs, strict=True):
            if not math.isfinite(logprob):
                self._leave(
                    request, PolicyInfraError(f"embedded engine: weights {self.version}: logits are not finite")
                )
                continue
            request.add(token, logprob, self.version)
            stopped = self._stop.ends_sample(request.ids, request.sampling.stop)
            full = int(self._slots.length[request.slot]) + 1 >= self._model.max_context
            if stopped or full or len(request.ids) >= request.sampling.max_tokens:
                self._count(requests=1)
                self._leave(request, request.to_sampled(stopped=stopped))
            else:
                self._slots.append(request.slot, token)

    def _count(self, **more: int) -> None:
        self.stats = replace(self.stats, **{name: getattr(self.stats, name) + value for name, value in more.items()})

    def _deliver(self) -> None:
        """Hand the answers to their event loops, with one call per loop and round."""
        answers, self._answers = self._answers, []
        for loop in {request.loop for request, _ in answers}:
            own_answers = [(request, answer) for request, answer in answers if request.loop is loop]
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, own_answers)


def _resolve(answers: Sequence[tuple[Request, Sampled | Exception]]) -> None:
    for request, answer in answers:
        if request.future.done():
            continue  # cancelled in the meantime
        if isinstance(answer, Exception):
            request.future.set_exception(answer)
        else:
            request.future.set_result(answer)
