"""What `kbert-pretrain` checks of masked objectives before hours of work."""

import types

import pytest

import kbert
from kbert.training.run.phases import parse_phases
from kbert.training.strategies import make_strategy
from pipelines.masked_text import MaskedText, task_builder
from tests.pipelines.test_pretrain import write_corpus


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--objective=replaced_tokens",), "no sentence objective.*--segments=pairs"),
        (("--objective=span_boundary",), "needs --masking=span.*--masking=token"),
    ],
)
def test_objectives_that_need_other_data(parse, arguments, message):
    with pytest.raises(ValueError, match=message):
        task_builder(parse(*arguments))


@pytest.mark.parametrize(
    ("documents", "pairs", "single"), [(0, False, False), (1, False, True), (2, True, True)]
)
def test_one_held_out_document_has_no_random_next(parse, tokenizer, documents, pairs, single):
    held_out = types.SimpleNamespace(documents=documents)
    manifest = types.SimpleNamespace(split={"held_out": held_out}.__getitem__)
    for segments, enough in (("pairs", pairs), ("single", single)):
        objective = MaskedText(parse(f"--segments={segments}"), tokenizer, manifest)
        assert (objective.why_no_evaluation() is None) == enough


def test_every_phase_is_checked_before_the_first_step(parse, tmp_path, tiny_vocabulary, tokenizer):
    data_dir = write_corpus(tmp_path, tiny_vocabulary)
    manifest = kbert.data.read_manifest(data_dir)
    objective = MaskedText(parse(f"--data_dir={data_dir}"), tokenizer, manifest)
    config = kbert.family("bert-tiny").replace(max_positions=64)
    task = types.SimpleNamespace(encoder=types.SimpleNamespace(config=config))

    objective.check_phases(parse_phases("16:0.5,64:0.5", 10, 8), task)
    with pytest.raises(ValueError, match="Received: sequence_length=65, max_positions=64"):
        objective.check_phases(parse_phases("16:0.5,65:0.5", 10, 8), task)
    with pytest.raises(ValueError, match=r"from 8 to 65,536. Received: 7"):
        objective.check_phases(parse_phases("16:0.5,7:0.5", 10, 8), task)


def test_what_only_a_language_model_reads_is_refused(parse, tokenizer):
    with pytest.raises(ValueError, match=r"masked_lm does not read .*Received: --negatives=9"):
        MaskedText(parse("--negatives=9"), tokenizer, None)


def test_what_only_a_translator_reads_is_refused(parse, tokenizer):
    with pytest.raises(ValueError, match=r"masked_lm does not read .*Received: --source=x"):
        MaskedText(parse("--source=x"), tokenizer, None)


def test_shards_are_needed(parse):
    one = make_strategy()
    with pytest.raises(ValueError, match=r"masked_lm learns from .*give --data_dir"):
        MaskedText.from_flags(parse(), one)


def test_a_language_model_is_no_encoder(parse, tokenizer):
    with pytest.raises(ValueError, match=r"--objective=language_model.*--model=elmo-small"):
        MaskedText(parse("--model=elmo-small"), tokenizer, None).make_task()
