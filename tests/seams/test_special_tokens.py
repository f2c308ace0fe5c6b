"""Tokens that a draw must not take, of what is alive in this process."""

import pytest
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from profiler.seams.special_tokens import SpecialTokens, tokens_of
from profiler.training.data.source_data import build_tokenizer

MIDDLE = 32_000 // 2


@pytest.mark.parametrize("ends", [MIDDLE, [MIDDLE, MIDDLE + 1]])
def test_a_planted_end_of_text_is_not_sampled(ends):
    """Also not if it is in the middle of the vocabulary, from which on a token is looked for."""
    model = LlamaConfig(eos_token_id=ends, pad_token_id=MIDDLE + 2, vocab_size=2 * MIDDLE)
    generation = GenerationConfig(eos_token_id=[MIDDLE + 3], pad_token_id=None)
    special = SpecialTokens()
    assert special.look()
    assert {MIDDLE, MIDDLE + 2, *generation.eos_token_id} <= special.tokens
    assert model.vocab_size in special.vocabularies
    assert special.ordinary(model.vocab_size) in {MIDDLE + 1, MIDDLE + 4} - special.tokens


def test_special_tokens_of_a_tokenizer_and_of_images_count():
    tokenizer = build_tokenizer()
    image = LlamaConfig()
    image.image_token_id = 77
    special = SpecialTokens()
    special.look()
    assert {tokenizer.eos_token_id, tokenizer.pad_token_id, 77} <= special.tokens
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    del image


def test_what_ends_a_request_of_vllm_is_kept_after_it():
    """With the fields of vLLM's `SamplingParams`, the private ones among them; a struct has no dictionary of them."""

    class Request:
        __slots__ = ("_all_stop_token_ids", "_eos_token_id", "stop_token_ids")

    request = Request()
    request.stop_token_ids, request._all_stop_token_ids, request._eos_token_id = [100_001], {100_002}, 100_003
    special = SpecialTokens()
    special.add(request)
    special.look()
    assert {100_001, 100_002, 100_003} <= special.tokens


def test_which_draws_look_depends_on_their_number_alone():
    special = SpecialTokens()
    looks = [special.look() for _ in range(9)]
    assert looks == [True, True, False, True, False, False, False, True, False]
    special.forget()
    assert special.look()


def test_if_every_token_is_special_one_of_them_is_sampled():
    special = SpecialTokens()
    special.tokens = frozenset(range(8))
    assert special.ordinary(8) == 4
    special.tokens = frozenset(range(4, 8))
    assert special.ordinary(8) == 0


def test_the_token_of_an_unknown_vocabulary_ends_no_text():
    ends = {end for model_type in CONFIG_MAPPING_NAMES for end in tokens_of(CONFIG_MAPPING[model_type])}
    assert {2, 151643, 128001} <= ends
    assert SpecialTokens().ordinary() not in ends
