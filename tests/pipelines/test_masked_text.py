"""What `kbert-pretrain` checks of masked objectives before hours of work."""

import pytest

import kbert
from kbert.training.strategies import make_strategy
from pipelines.flags import apply_recipe
from pipelines.masked_text import MaskedText, ReplacedTokensText, read_config, task_builder


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--objective=replaced_tokens",), "no sentence objective.*--segments=pairs"),
        (("--objective=span_boundary",), "requires --masking=span.*--masking=token"),
    ],
)
def test_objectives_that_need_other_data(parse, arguments, message):
    with pytest.raises(ValueError, match=message):
        task_builder(parse(*arguments))


def test_what_only_a_language_model_reads_is_refused(parse, tokenizer):
    with pytest.raises(ValueError, match=r"masked_lm does not support .*Received: --negatives=9"):
        MaskedText(parse("--negatives=9"), tokenizer, None)


def test_what_only_a_translator_reads_is_refused(parse, tokenizer):
    with pytest.raises(ValueError, match=r"masked_lm does not support .*Received: --source=x"):
        MaskedText(parse("--source=x"), tokenizer, None)


def test_what_only_electra_reads_is_refused(parse, tokenizer):
    ReplacedTokensText(
        parse("--objective=replaced_tokens", "--generator_share=0.5"), tokenizer, None
    )
    with pytest.raises(ValueError, match=r"masked_lm does not support .*: --generator_share=0.5"):
        MaskedText(parse("--generator_share=0.5"), tokenizer, None)


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        (["--initial_accumulator_value=7"], "optimizer=adamw .*initial_accumulator_value=7"),
        (["--noscale_parameter"], "optimizer=adamw .*scale_parameter=False"),
        (["--optimizer=adagrad", "--beta_1=0.5"], "optimizer=adagrad .*beta_1=0.5"),
    ],
)
def test_what_only_another_optimizer_reads_is_refused(parse, tokenizer, arguments, received):
    with pytest.raises(ValueError, match=f"--{received}"):
        MaskedText(parse(*arguments), tokenizer, None)


def test_the_settings_of_a_recipe_are_not_given(parse, tokenizer):
    options = parse("--recipe=elmo", "--optimizer=adamw", "--objective=masked_lm")
    apply_recipe(options)
    MaskedText(options, tokenizer, None)


def test_shards_are_needed(parse):
    one = make_strategy()
    with pytest.raises(ValueError, match=r"masked_lm requires --data_dir"):
        MaskedText.from_flags(parse(), one)


def test_a_language_model_is_no_encoder(parse, tokenizer):
    with pytest.raises(ValueError, match=r"--objective=language_model.*--model=elmo-small"):
        MaskedText(parse("--model=elmo-small"), tokenizer, None).make_task()


def test_a_new_model_has_the_tokenizer_s_entries_and_padding(tokenizer):
    config = read_config("roberta-base", {}, tokenizer)
    assert (config.vocabulary_size, config.padding_id) == (tokenizer.vocabulary_size, 0)
    assert read_config("roberta-base", {"padding_id": 3}, tokenizer).padding_id == 3
    assert read_config("bert-tiny", {}, tokenizer).padding_id is None
