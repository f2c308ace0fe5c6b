"""Rows that are longer than a model was made for: a warning where positions are rotary, a fault where a table ends."""

import json

import pytest
from small_models import refusal_of_transformers, small_config

from profiler.analytical.formulas.vllm_memory import accepted_tokens
from profiler.config.models.architecture import MODEL_TYPES, read_architecture
from profiler.config.models.context import context_line, model_lines
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.errors import UsageError
from profiler.estimate.job.inputs import Inputs
from profiler.estimate.main import answer
from profiler.solve.search import KeySearch

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def shaped(model_type="llama", **fields):
    return read_architecture(small_config(model_type, **fields), model="m")


def parsed(architecture, **keys):
    return parse_point({"backend": "simulated", "model": "m", **keys}, architecture_of=lambda _: architecture)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_known_type_runs_beyond_its_context_in_transformers(model_type):
    config = small_config(model_type)
    assert not refusal_of_transformers(config, tokens=40)
    architecture = read_architecture(config, model="m")
    assert (architecture.context, architecture.has_rotary_positions) == (16, True)


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({}, 32768),
        ({"rope_scaling": YARN}, 131_072),
        ({"rope_scaling": YARN, "max_position_embeddings": 40_960}, 131_072),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, 65_536),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, 65_536),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
            32768,
        ),
    ],
)
def test_the_context_is_that_of_scaled_positions(fields, context):
    """By hand: 32,768 x 4, of the original positions; vLLM reads the same (`get_and_verify_max_len`)."""
    architecture = shaped(**{"max_position_embeddings": 32768, **fields})
    assert architecture.context == context
    spec = parsed(architecture, max_completion_length=context - 256, use_vllm=True)
    assert not context_line(spec, architecture)
    assert accepted_tokens(spec, architecture) == context
    assert parsed(architecture, use_vllm=True, vllm_max_model_length=context)
    with pytest.raises(UsageError, match="is more than the context of m"):
        parsed(architecture, use_vllm=True, vllm_max_model_length=context + 1)


def test_gemma_3_states_the_context_that_its_scaling_has():
    scaling = {"rope_type": "linear", "factor": 8.0}
    assert shaped("gemma3_text", max_position_embeddings=131_072, rope_scaling=scaling).context == 131_072


@pytest.mark.parametrize("keys", [{"max_completion_length": 16}, {"recipe": "sft", "max_length": 17}])
def test_a_longer_row_is_a_warning_that_names_the_key(keys):
    architecture = shaped()
    line = context_line(parsed(architecture, **keys), architecture)
    assert "the model was made for 16" in line
    assert "rope_scaling in its config.json" in line


def test_the_scaling_that_the_warning_shows_ends_it():
    architecture = shaped()
    line = context_line(parsed(architecture, max_completion_length=100), architecture)
    scaling = json.loads(line[line.index("{") : line.index("}") + 1])
    scaled = shaped(rope_scaling=scaling)
    assert scaled.context == 368  # 356 tokens by 16 positions are 23 times as many
    assert not context_line(parsed(scaled, max_completion_length=100), scaled)


def test_the_estimate_of_a_longer_row_shows_the_warning():
    words = ["model=qwen2.5-0.5b", "max_completion_length=40000"]
    assert "the model was made for 32,768" in " ".join(answer(words).split())
    assert "the model was made for 32,768" in answer([*words, "format=json"])
    assert "the model was made for 32,768" in " ".join(answer([*words[:1], "max_completion_length=100,40000"]).split())
    assert "vLLM ends responses at 32,768" in " ".join(answer([*words, "use_vllm=true"]).split())


def test_a_table_of_positions_ends():
    """BioGPT has a table of learned positions, and says so by stating no rotary ones."""
    learned = small_config("biogpt", architectures=["BioGptForCausalLM"])
    architecture = read_architecture(learned, model="m")
    assert not architecture.has_rotary_positions
    with pytest.raises(UsageError, match="a row has 1042 tokens, but the context of m is 16, and its"):
        parsed(architecture)
    assert read_architecture(learned | {"rope_theta": 10000.0}, model="m").has_rotary_positions


def test_solve_stays_within_the_context_unless_the_trial_does_not():
    def largest(**keys):
        point = {"backend": "simulated", "gpu": "h200-141gb", "model": "qwen2.5-0.5b", "tuning": "lora", **keys}
        inputs = Inputs(keys=point, notes=(), sharded=None, stated=frozenset(), ignored="", faults=())
        key = "max_completion_length"
        return KeySearch(key, {}, inputs=inputs, margin=0.0, architecture_of=builtin_architecture).boundary()

    assert largest().largest == 32_768 - 256
    assert largest(max_prompt_length=32_768).largest > 256


@pytest.mark.parametrize(("model_type", "said"), [("qwen3_5_text", True), ("qwen3", False)])
def test_an_answer_says_by_which_version_layers_are_counted(model_type, said):
    architecture = shaped(model_type)
    lines = model_lines(parsed(architecture, max_prompt_length=4, max_completion_length=4), architecture)
    assert any("run in PyTorch" in line and "flash-linear-attention" in line for line in lines) == said
