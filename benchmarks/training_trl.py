"""TRL's GRPOTrainer on given sequences, in a virtualenv of its own: only its training is timed.

The program reads sequences and settings, builds the trainer with ready-made completions, and makes a step of the
optimiser on every command. The time in which TRL collects completions and rewards is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gymcp.paths import gymcp_home

VERSION = "1.16.0"
INSTALL_TIMEOUT_S = 1800.0
STEP_TIMEOUT_S = 600.0
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"

PROGRAM = r"""
import json, sys, time, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

plan = json.loads(Path(sys.argv[1]).read_text())
torch.set_num_threads(plan["threads"])
on_gpu = plan["may_use_gpu"] and torch.cuda.is_available()
rows = plan["rows"]  # [B] of [prompt ids, completion ids]
group = plan["group"]
place = 0

def rollout(prompts, trainer):
    global place
    taken = [rows[(place + n) % len(rows)] for n in range(len(prompts))]
    place += len(prompts)
    return {
        "prompt_ids": [prompt for prompt, _ in taken],
        "completion_ids": [completion for _, completion in taken],
        "logprobs": [[-7.0] * len(completion) for _, completion in taken],
    }

def reward(completions, **rest):
    return [float(n % 2) for n in range(len(completions))]

class Stepwise(TrainerCallback):
    def on_step_begin(self, args, state, control, **rest):
        print("ready", flush=True)
        sys.stdin.readline()
        Timed.aside = 0.0
        self.began = time.perf_counter()

    def on_step_end(self, args, state, control, **rest):
        print("took", time.perf_counter() - self.began - Timed.aside, flush=True)

class Timed(GRPOTrainer):
    aside = 0.0

    def _generate_and_score_completions(self, inputs):
        began = time.perf_counter()
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            Timed.aside += time.perf_counter() - began

tokenizer = AutoTokenizer.from_pretrained(plan["model"])
size = plan["micro_batch"]
config = GRPOConfig(
    output_dir=plan["folder"], use_cpu=not on_gpu, bf16=on_gpu, report_to=[], save_strategy="no", logging_strategy="no",
    disable_tqdm=True, gradient_checkpointing=False, per_device_train_batch_size=size,
    gradient_accumulation_steps=len(rows) // size, num_generations=group, max_steps=plan["steps"], beta=0.0,
    max_completion_length=max(len(completion) for _, completion in rows), learning_rate=1e-5,
    dataloader_pin_memory=False, loss_type=plan["loss"], epsilon_high=0.28, seed=0,
)
model = AutoModelForCausalLM.from_pretrained(plan["model"], dtype=torch.float32)
data = Dataset.from_dict({"prompt": ["x"] * (len(rows) * (plan["steps"] + 1))})
trainer = Timed(
    model=model, args=config, train_dataset=data, processing_class=tokenizer, reward_funcs=[reward],
    rollout_func=rollout, callbacks=[Stepwise()],
)
trainer.train()
"""


def install() -> Path:
    """The interpreter of TRL's virtualenv in gymcp's cache; makes it if it is missing, with this project's versions."""
    folder = gymcp_home() / "benchmarks" / f"trl-{VERSION}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=120)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS)]
        wanted = [f"trl=={VERSION}", "torch", "transformers"]
        subprocess.run([*pip, *wanted], check=True, timeout=INSTALL_TIMEOUT_S, stdout=sys.stderr)
        ready.touch()
    return python


class Trl:
    """A trainer that makes a step on command. `trl_trainer` opens it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def step(self) -> float:
        """Seconds of one step of the optimiser over all sequences. Raises RuntimeError if it does not end in time."""
        assert self._process.stdin is not None
        watch = threading.Timer(STEP_TIMEOUT_S, self._process.kill)
        watch.start()
        try:
            self._line("ready")
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
            return float(self._line("took"))
        finally:
            watch.cancel()

    def _line(self, word: str) -> str:
        """The rest of the next line that begins with the word. Raises RuntimeError if there is none."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            first, _, rest = line.strip().partition(" ")
            if first == word:
                return rest
        raise RuntimeError(f"TRL ended, or took more than {STEP_TIMEOUT_S:g} s; see its words above")


@contextmanager
def trl_trainer(
    model: Path, rows: Sequence[tuple[list[int], list[int]]], *, group: int, micro_batch: int, steps: int, threads: int,
    folder: Path, loss: str = "dapo", python: Path | None = None,
) -> Iterator[Trl]:  # fmt: skip
    """A trainer of [B] (prompt, completion) in groups: `micro_batch` sequences at a time, at most `steps` steps.

    `python`: an interpreter that has TRL; it trains on the GPU if there is one, in bfloat16. None for that of a
    virtualenv in the cache, which is made if it is missing, and for the CPU in float32.
    """
    plan = folder / "plan.json"
    plan.write_text(
        json.dumps(
            {
                "model": str(model), "rows": rows, "group": group, "micro_batch": micro_batch, "steps": steps,
                "threads": threads, "folder": str(folder / "trl"), "loss": loss, "may_use_gpu": python is not None,
            }
        )
    )  # fmt: skip
    process = subprocess.Popen(
        [str(python or install()), "-c", PROGRAM, str(plan)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Trl(process)
    finally:
        process.kill()
        process.wait(60)
