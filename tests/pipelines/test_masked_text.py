"""What `kbert-pretrain` checks of masked objectives before hours of work."""

import dataclasses
import types
from unittest import mock

import pytest

import kbert
from kbert.training.run.phases import parse_phases
from kbert.training.strategies import make_strategy
from pipelines.masked_text import MaskedText, read_config, task_builder
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


def asked(parse, tokenizer, *arguments):
    """(begin, end, batches over which, batches before) of each phase, and of the evaluation."""
    objective = MaskedText(parse("--steps=100", *arguments), tokenizer, None)
    names = ("masked_share", "final_masked_share", "share_steps", "first_step")
    with mock.patch.object(kbert.data, "pretraining_dataset") as made:
        phases = objective.phases()
        for phase in phases:
            objective.batches(dataclasses.replace(phase, done=2))
        objective.held_out(phases[0])
    return [tuple(call.kwargs.get(name) for name in names) for call in made.call_args_list]


def test_each_phase_has_its_part_of_the_way_of_the_masked_share(parse, tokenizer):
    schedule = ("--masked_share=0.3", "--final_masked_share=0.1")
    found = asked(parse, tokenizer, "--phases=16:0.25,16:0.75", *schedule)
    assert found == [
        (0.3, 0.25, 25, 2),
        (0.25, pytest.approx(0.1), 75, 2),
        (0.1, None, None, None),  # held-out text
    ]
    shares = "--phases=16:0.5::0.3,16:0.25,16:0.25:8:0.05"
    constant = [share for share, final, *_ in asked(parse, tokenizer, shares) if final is None]
    assert constant == [0.3, 0.15, 0.05, 0.05]
    assert asked(parse, tokenizer)[1] == (0.15, None, None, None)
    with pytest.raises(ValueError, match=r"leave out --final_masked_share, or the shares of"):
        asked(parse, tokenizer, shares, *schedule)


def test_each_phase_has_its_lexicon(parse, tiny_vocabulary, tokenizer, tmp_path):
    """ERNIE's stages: words, then phrases, then entities; held-out text as in the last."""
    words, names = (str(tmp_path / name) for name in ("words.txt", "names.txt"))
    stages = ("--masking=phrase", "--phases=16:0.5,16:0.25,16:0.25", "--steps=100")

    def units(*arguments):
        objective = MaskedText(parse(*arguments), tokenizer, None)
        with mock.patch.object(kbert.data, "pretraining_dataset") as made:
            phases = objective.phases()
            for phase in phases:
                objective.batches(dataclasses.replace(phase, done=2))
            objective.held_out(phases[0])
        return [(call.kwargs["masking"], call.kwargs["phrases"]) for call in made.call_args_list]

    found = units(*stages, f"--phrases=,{words},{names}")
    assert found == [
        ("whole_word", None),
        ("phrase", words),
        *[("phrase", names)] * 2,
    ]
    assert units(*stages, f"--phrases={words}") == [("phrase", words)] * 4
    with pytest.raises(ValueError, match=r"one for each of --phases. Received: --phrases=,"):
        units(*stages, f"--phrases=,{words}")
    with pytest.raises(ValueError, match=r"with --masking=phrase one.*--masking=token"):
        units(*stages, f"--phrases=,{words},{names}", "--masking=token")

    # What is missing in a later phase is told before the first step.
    (tmp_path / "words.txt").write_text("the quick fox\n")
    data_dir = write_corpus(tmp_path, tiny_vocabulary)
    options = parse(*stages, f"--phrases=,{words},{names}", f"--data_dir={data_dir}")
    objective = MaskedText(options, tokenizer, kbert.data.read_manifest(data_dir))
    config = kbert.family("bert-tiny")
    task = types.SimpleNamespace(encoder=types.SimpleNamespace(config=config))
    with pytest.raises(FileNotFoundError, match=r"No lexicon.*names.txt"):
        objective.check_phases(objective.phases(), task)


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


def test_a_new_model_has_the_tokenizer_s_entries_and_padding(tokenizer):
    config = read_config("roberta-base", {}, tokenizer)
    assert (config.vocabulary_size, config.padding_id) == (tokenizer.vocabulary_size, 0)
    assert read_config("roberta-base", {"padding_id": 3}, tokenizer).padding_id == 3
    assert read_config("bert-tiny", {}, tokenizer).padding_id is None
