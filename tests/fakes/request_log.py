"""The lines llama-server prints about one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fakes.log import Log

_PARAMS = """\
\trepeat_last_n = 64, repeat_penalty = 1.000, frequency_penalty = 0.000, presence_penalty = 0.000
\tdry_multiplier = 0.000, dry_base = 1.750, dry_allowed_length = 2, dry_penalty_last_n = 64
\ttop_k = 40, top_p = 0.950, min_p = 0.050, xtc_probability = 0.000, xtc_threshold = 0.100, \
typical_p = 1.000, top_n_sigma = -1.000, temp = 0.800
\tmirostat = 0, mirostat_lr = 0.100, mirostat_ent = 5.000, adaptive_target = -1.000, \
adaptive_decay = 0.900"""


def start(log: Log, slot: int, task: int, n_ctx: int, tokens: int) -> None:
    """A slot was found and the request begins."""
    log.trace_line("srv  server_strea: conv_id= (empty=1)")
    log.say("I", f"slot get_availabl: id  {slot} | task -1 | selected slot by LRU, t_last = -1")
    chain = "logits -> logit-bias -> ?penalties -> ?dry -> top-k -> top-p -> min-p -> dist "
    log.trace_line(f"slot launch_slot_: id  {slot} | task -1 | sampler chain: {chain}")
    log.trace_line(f"slot launch_slot_: id  {slot} | task -1 | sampler params: \n{_PARAMS}")
    head = f"id  {slot} | task {task} | "
    log.say("I", f"slot launch_slot_: {head}processing task, is_child = 0")
    log.trace_line(
        f"slot   operator(): {head}new prompt, n_ctx_slot = {n_ctx}, n_keep = 0, "
        f"task.n_tokens = {tokens}"
    )


def prompt(log: Log, slot: int, task: int, batches: range) -> None:
    """Log the start of each batch of the prompt."""
    head = f"id  {slot} | task {task} | "
    for at in batches:
        log.trace_line(
            f"slot   operator(): {head}cached n_tokens = {at}, memory_seq_rm [{at}, end)"
        )
    total = batches.stop
    log.trace_line(
        f"slot init_sampler: {head}init sampler, took 0.14 ms, tokens: text = {total}, "
        f"total = {total}"
    )


def end(log: Log, slot: int, task: int, timings: Mapping[str, Any], held: int) -> None:
    """Timings of a request that was answered; `held` tokens stay in the slot."""
    head = f"slot print_timing: id  {slot} | task {task} | "
    rows = (("prompt eval time", "prompt"), ("       eval time", "predicted"))
    for name, part in rows:
        log.say(
            "I",
            f"{head}{name} = {timings[part + '_ms']:10.2f} ms / {timings[part + '_n']:5d} tokens "
            f"({timings[part + '_per_token_ms']:8.2f} ms per token, "
            f"{timings[part + '_per_second']:8.2f} tokens per second)",
        )
    spent = timings["prompt_ms"] + timings["predicted_ms"]
    tokens = timings["prompt_n"] + timings["predicted_n"]
    log.say("I", f"{head}      total time = {spent:10.2f} ms / {tokens:5d} tokens")
    log.say("I", f"{head}   graphs reused = {max(0, timings['predicted_n'] - 1):10d}")
    words = f"stop processing: n_tokens = {held}, truncated = 0"
    log.say("I", f"slot      release: id  {slot} | task {task} | {words}")
    log.trace_line("srv  update_slots: all slots are idle")
