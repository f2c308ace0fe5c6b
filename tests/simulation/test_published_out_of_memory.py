"""Who could have asked for the 1.90 GiB of the published out-of-memory message (row ``oxen-laptop-oom``)?

The message: an RTX 3080 laptop with 15.73 GiB, 1.90 GiB asked for, 11.82 GiB allocated, 2.41 reserved but unallocated.
The model and the method are not stated; the blog's protocol is 4 completions of up to 786 tokens for a prompt of up to
256, logits of all rows at once.

What the simulation finds:

- With exactly 256 + 786 tokens, no built-in model asks for it on any line. The nearest are the float32 logits of the
  completion: 1.78 GiB for Qwen's vocabularies, 1.50 for Llama's.
- Logits of *every* position (as trl made them before the end of January 2025) come out at 1.90 GiB for 994 positions
  of Llama 3's 128,256 entries, so for a prompt of 208 tokens or two more or less, or for 839 positions of Qwen's, so
  for a prompt of 53. A prompt of 53 tokens is short for that protocol.
- The lines that ask for so much are the float32 copy of the logits, without gradient and with, and in backward the
  gradients of both. Their allocated memory, over all methods of the blog, at the request that is nearest to 11.82 GiB:

  | model | method | phase | allocated, GiB |
  |---|---|---|---:|
  | Llama-3.2-1B | full + 8-bit, with and without checkpointing | score, second step, gradients there | 11.67 |
  | Llama-3.2-1B | full + 8-bit + checkpointing | forward, second step, gradients there | 11.97 |
  | Llama-3.2-1B | full, AdamW or 8-bit, no checkpointing | forward, first step | 12.06 |
  | Llama-3.2-1B | full + checkpointing | backward, second step | 11.42 |
  | Llama-3.2-1B | LoRA | backward | 10.80 |
  | Llama-3.2-3B | full, all | score, first step | 12.93 |
  | Llama-3.2-3B | LoRA | backward, with checkpointing | 8.84 |
  | Qwen2.5-0.5B | full | backward, second step | 10.84 |
  | Qwen2.5-1.5B | full + 8-bit + checkpointing | backward, second step | 12.19 |
  | Qwen2.5-1.5B | full, with and without checkpointing | score, second step | 12.47 |
  | Qwen2.5-1.5B | LoRA | forward | 12.98 |

So the best reading: Llama-3.2-1B, full fine-tuning, at the float32 copy of the logits; in the second step with 8-bit
AdamW it is 0.15 GiB from the message. It stays a reading: the trainer was another one, of which that is within reach.
"""

import pytest
from simulating import small_spec

from profiler.domain.memory import GIB, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Attention, Lengths, Logprobs
from profiler.worker.simulated import simulate

ROWS, COMPLETION, LONGEST_PROMPT = 4, 786, 256
PROTOCOL = {
    "gpu": "rtx-3080-laptop-16gb",
    "lengths": Lengths.FORCED,
    "steps_per_generation": 1,
    "beta": 0.04,
    "logprobs": Logprobs.FULL,
    "attn_implementation": Attention.FLASH_ATTENTION_2,
    "optim": Optimizer.ADAMW_8BIT,
    "gradient_checkpointing": False,
}
VOCABULARIES = {128_256: "Llama 3", 151_936: "Qwen", 152_064: "Qwen, 7B and 14B"}


def printed(size_bytes: int) -> str:
    """As torch prints it."""
    return f"{size_bytes / GIB:.2f}"


def requests(**keys: object) -> list[tuple[Phase, str, int, int]]:
    """Phase, operation, requested bytes and allocated bytes of every request of more than 1 GiB."""
    spec = small_spec(**(PROTOCOL | keys))
    trace = simulate(spec, BUILTIN_MODELS[spec.model].config).trace
    starts, phase, allocated, found = dict(trace.phase_starts), Phase.LOAD, 0, []
    for index, event in enumerate(trace.events):
        phase, block = starts.get(index, phase), abs(event) - 1
        size = trace.sizes_bytes[block]
        if event > 0 and size > GIB:
            found.append((phase, trace.sites[trace.site_of[block]].operation, size, allocated))
        allocated += size if event > 0 else -size
    return found


@pytest.mark.parametrize(
    ("model", "nearest"), [("qwen2.5-0.5b", "1.78"), ("llama-3.2-1b", "1.50")], ids=["Qwen", "Llama"]
)
def test_at_the_protocols_lengths_nothing_requests_it(model: str, nearest: str) -> None:
    found = requests(
        model=model,
        max_prompt_length=LONGEST_PROMPT,
        max_completion_length=COMPLETION,
        steps=1,
        gradient_accumulation_steps=1,
    )
    sizes = {printed(size) for _, _, size, _ in found}
    assert "1.90" not in sizes
    assert nearest in sizes
    vocabulary = int(BUILTIN_MODELS[model].config["vocab_size"])
    assert nearest == printed(ROWS * (COMPLETION + 1) * vocabulary * 4)


def test_logits_of_every_position_could_have() -> None:
    """Every vocabulary of the blog's families, every prompt up to 256 tokens, logits in float32 and in bfloat16."""
    families = [model for name, model in BUILTIN_MODELS.items() if name.startswith(("llama-3", "qwen2.5"))]
    known = {int(model.config["vocab_size"] or 0) for model in families}
    prompts = {
        (vocabulary, size): [
            prompt
            for prompt in range(1, LONGEST_PROMPT + 1)
            if printed(ROWS * (prompt + COMPLETION) * vocabulary * size) == "1.90"
        ]
        for vocabulary in known
        for size in (4, 2)
    }
    assert {key: (found[0], found[-1]) for key, found in prompts.items() if found} == {
        (128_256, 4): (206, 210),
        (151_936, 4): (52, 55),
        (152_064, 4): (51, 54),
    }
    assert VOCABULARIES.keys() == {vocabulary for (vocabulary, _), found in prompts.items() if found}


def test_llama_1b_requests_it_with_the_allocated_memory_of_the_message() -> None:
    # One token of prompt and 993 of completion: the same 994 positions, and logits of each of them.
    found = requests(
        model="llama-3.2-1b", max_prompt_length=1, max_completion_length=993, steps=2, gradient_accumulation_steps=2
    )
    asked = [
        (phase, operation, allocated / GIB) for phase, operation, size, allocated in found if printed(size) == "1.90"
    ]
    assert {(phase, operation) for phase, operation, _ in asked} == {
        (Phase.SCORE, "aten._to_copy"),
        (Phase.FORWARD, "aten._to_copy"),
        (Phase.BACKWARD, "aten.stack"),
        (Phase.BACKWARD, "aten.slice_backward"),
    }
    phase, _, allocated = min(asked, key=lambda request: abs(request[2] - 11.82))
    assert phase is Phase.SCORE
    assert allocated == pytest.approx(11.67, abs=0.02)
    first_forward = next(allocated for phase, _, allocated in asked if phase is Phase.FORWARD)
    assert first_forward == pytest.approx(12.06, abs=0.02)
