"""Tokenizers that are unavailable are replaced by one of the right size with a chat template."""

from pathlib import Path

from transformers import AutoProcessor, AutoTokenizer

from profiler.substitutes import substitutes
from profiler.training.data.source_data import build_tokenizer


def test_a_tokenizer_has_the_vocabulary_of_its_model() -> None:
    with substitutes() as replaced:
        tokenizer = AutoTokenizer.from_pretrained("tiny", padding_side="left")
    assert len(tokenizer) == 512
    assert tokenizer.padding_side == "left"
    assert tokenizer.name_or_path == "tiny"
    assert tokenizer("a sentence of five words")["input_ids"] == [2] * 5
    assert tokenizer.pad_token_id not in (2, tokenizer.eos_token_id)
    assert "tokenizer of tiny (one token per word)" in replaced.line()


def test_a_processor_of_a_model_of_texts_is_a_tokenizer() -> None:
    with substitutes():
        assert len(AutoProcessor.from_pretrained("tiny")) == 512


def test_a_chat_has_the_tokens_of_its_words_and_marks_the_reply() -> None:
    with substitutes():
        tokenizer = AutoTokenizer.from_pretrained("tiny")
    chat = [{"role": "user", "content": "w1 w2 w3"}, {"role": "assistant", "content": "w4 w5"}]
    found = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    assert len(found["input_ids"]) == (2 + 3 + 1) + (2 + 2 + 1)
    assert sum(found["assistant_masks"]) == 2 + 1
    asked = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, return_dict=True)
    assert len(asked["input_ids"]) == (2 + 3 + 1) + 2


def test_a_tokenizer_that_is_here_is_used(tmp_path: Path) -> None:
    build_tokenizer().save_pretrained(tmp_path)
    with substitutes() as replaced:
        assert len(AutoTokenizer.from_pretrained(str(tmp_path))) == 66
    assert not replaced


def test_a_model_whose_positions_begin_at_two_has_two_fewer() -> None:
    with substitutes():
        assert AutoTokenizer.from_pretrained("roberta-base").model_max_length == 512
        assert AutoTokenizer.from_pretrained("bert-base-uncased").model_max_length == 512


def test_an_image_processor_is_that_of_the_models_type() -> None:
    with substitutes() as replaced:
        from transformers import AutoImageProcessor

        made = AutoImageProcessor.from_pretrained("google/vit-base-patch16-224-in21k")
    assert type(made).__name__.startswith("ViTImageProcessor")
    assert (made.size["height"], made.size["width"]) == (224, 224)
    assert "image processor of google/vit-base-patch16-224-in21k (the defaults of ViTImageProcessor" in replaced.line()


def test_newlines_are_a_token_of_their_own() -> None:
    """verl encodes a newline, and stops unless it is one token."""
    with substitutes():
        tokenizer = AutoTokenizer.from_pretrained("tiny")
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)
    assert tokenizer.decode([newline]) == "\n"
    assert newline not in tokenizer.all_special_ids
    assert tokenizer("two words\nand  four\twords\r\nmore")["input_ids"].count(newline) == 2
    assert len(tokenizer("two words\n\nand four words more")["input_ids"]) == 6 + 1


def test_trl_reads_answers_of_a_substitute() -> None:
    with substitutes():
        from trl import chat_template_utils

        tokenizer = AutoTokenizer.from_pretrained("tiny")
        own = tokenizer.chat_template
        made = chat_template_utils.add_response_schema(tokenizer)
    prompt = made.apply_chat_template([{"role": "user", "content": "w3"}], add_generation_prompt=True)["input_ids"]
    answer = chat_template_utils.parse_response(made, made("w1 w2").input_ids, prefix=prompt)
    assert answer["role"] == "assistant"
    assert answer["content"].endswith("w1 w2")
    assert made.chat_template == own
