"""`fit` of tasks on a corpus: what a batch is made by, what is refused, and that a run resumes."""

import dataclasses
import json
import signal
from unittest import mock

import keras
import numpy as np
import pytest

import kbert
from kbert.data.pretraining.dataset import pretraining_dataset
from kbert.tasks import corpora
from kbert.training import AdamW
from kbert.training.run.signals import Terminated
from tests.harness import tiny_config
from tests.pipelines.test_pretrain import write_corpus

RUN = {"steps": 12, "batch_size": 8, "phases": "16:0.5,24:0.5", "verbose": 0}


@pytest.fixture(scope="module")
def shards(tmp_path_factory, tiny_vocabulary):
    return write_corpus(tmp_path_factory.mktemp("corpus"), tiny_vocabulary)


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


def make_task(tokenizer, kind=kbert.tasks.Pretraining, **settings):
    keras.utils.set_random_seed(3)
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "max_positions": 64}
    config = tiny_config(**sizes, dropout=0.1)
    return kind(kbert.Encoder(config), tokenizer, **settings)


def weights(task):
    return [np.asarray(keras.ops.convert_to_numpy(x)).tobytes() for x in task.weights]


class StopAt(keras.callbacks.Callback):
    """Requests the end of a run at a step, as from outside."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.step:
            signal.raise_signal(signal.SIGTERM)


def test_batches_of_a_new_run_are_made_once(shards, tokenizer):
    """Those that `check` makes are used; from another position, or on hosts, they are others."""
    task = make_task(tokenizer)
    made = []

    def dataset(*arguments, **settings):
        made.append(settings)
        return pretraining_dataset(*arguments, **settings)

    with mock.patch.object(corpora, "pretraining_dataset", dataset):
        objective = task.make_objective(shards, steps=4, batch_size=8, sequence_length=16)
        (phase,) = objective.plan
        batches = objective.batches(phase, (0, 0, 0))
        assert len(made) == 1
        later = objective.batches(dataclasses.replace(phase, done=1), (0, 0, 8))
        half = objective.batches(phase, (0, 0, 0), num_hosts=2, host_index=1)
        assert len(made) == 3
    first, second = (x["token_ids"].numpy() for x in batches.take(2))
    np.testing.assert_array_equal(next(iter(later))["token_ids"], second)
    np.testing.assert_array_equal(next(iter(half))["token_ids"], first[4:])


@pytest.mark.slow
def test_a_run_in_two_calls_is_a_run(shards, tokenizer, tmp_path):
    """It stops in the first phase, and all that follows is as in one call: the weights too."""
    settings = {**RUN, "learning_rate": 1e-3, "evaluate_every": 6, "evaluation_steps": 2}
    whole = make_task(tokenizer)
    history = whole.fit(shards, **settings, model_dir=tmp_path / "whole")
    with pytest.raises(Terminated):
        make_task(tokenizer).fit(
            shards, **settings, model_dir=tmp_path / "halves", callbacks=[StopAt(4)]
        )
    again = make_task(tokenizer)
    resumed = again.fit(str(shards), **settings, model_dir=tmp_path / "halves")
    assert resumed.step == history.step == 12
    assert resumed.steps == history.steps
    assert resumed.evaluations == history.evaluations
    assert [x["step"] for x in history.evaluations] == [6, 12]
    assert weights(again) == weights(whole)


@pytest.mark.usefixtures("eagerly")
def test_the_seed_is_that_of_dropout_too(shards, tokenizer, tmp_path):
    how = {"steps": 1, "batch_size": 4, "sequence_length": 16, "verbose": 0}
    losses = []
    for state in (5, 6):
        task = make_task(tokenizer)
        for variable in task.non_trainable_variables:  # as if the process had drawn others before
            if variable.name == "seed_generator_state":
                variable.assign([state, state])
        history = task.fit(shards, **how, seed=7, model_dir=tmp_path / str(state))
        losses.append(history.steps[0]["loss"])
    assert losses[0] == losses[1]


def test_other_settings_of_a_run_are_refused(shards, tokenizer, tmp_path):
    settings = {"steps": 2, "batch_size": 4, "sequence_length": 16, "learning_rate": 1e-3}
    make_task(tokenizer).fit(shards, **settings, model_dir=tmp_path, verbose=0)
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["task"]["kind"] == "pretrain"
    assert record["settings"]["learning_rate"] == 1e-3
    assert record["encoder"]["vocabulary_size"] == tokenizer.vocabulary_size
    with pytest.raises(ValueError, match=r"settings.learning_rate was 0.001, is 0.01$"):
        make_task(tokenizer).fit(shards, **{**settings, "learning_rate": 1e-2}, model_dir=tmp_path)
    other = make_task(tokenizer, next_sentence=False)
    with pytest.raises(ValueError, match=r"task.next_sentence was True, is False"):
        other.fit(shards, **settings, model_dir=tmp_path)


def test_a_program_and_fit_train_alike(shards, tokenizer, tmp_path):
    """The settings of a program are those of `fit`: the same losses, to the last bit."""
    from absl.testing import flagsaver

    from pipelines import pretrain

    flags = (f"--data_dir={shards}", "--steps=4", "--batch_size=8", "--sequence_length=16")
    model = ("--set=hidden_size=16", "--set=num_layers=1", "--set=num_heads=2", "--seed=7")
    program = (*flags, *model, "--set=intermediate_size=32", f"--model_dir={tmp_path / 'program'}")
    with flagsaver.flagsaver():
        options = pretrain.flags.FLAGS
        pretrain.define_flags()
        pretrain.main(options(["kbert", "--model=bert-tiny", *program]))
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
    config = kbert.family("bert-tiny").replace(vocabulary_size=tokenizer.vocabulary_size, **sizes)
    keras.utils.set_random_seed(7)
    task = kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer)
    settings = {"steps": 4, "batch_size": 8, "sequence_length": 16, "seed": 7, "warmup_steps": 0}
    history = task.fit(shards, **settings, model_dir=tmp_path / "fit", verbose=0)
    lines = (tmp_path / "program" / "steps.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history.steps


def test_what_is_compiled_is_trained_with(shards, tokenizer, tmp_path):
    task = make_task(tokenizer)
    task.compile(AdamW(1e-3))
    with pytest.raises(ValueError, match=r"compiled with its own optimizer.*learning_rate=0.1"):
        task.fit(shards, steps=2, batch_size=4, sequence_length=16, learning_rate=0.1)
    how = {"steps": 2, "batch_size": 4, "sequence_length": 16, "verbose": 0}
    history = task.fit(shards, **how, model_dir=tmp_path)
    assert history.steps[-1]["learning_rate"] == pytest.approx(1e-3)
    record = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert record["optimizer"]["class_name"] == "AdamW"
    assert "learning_rate" not in record
    task = make_task(tokenizer)
    assert task.fit(shards, **how).step == 2  # without a folder nothing is written
    assert not task.compiled_by_user


def test_the_average_of_the_last_checkpoints(shards, tokenizer, tmp_path):
    how = {"steps": 4, "batch_size": 4, "sequence_length": 16, "checkpoint_every": 1}
    task = make_task(tokenizer)
    task.fit(shards, **how, average_checkpoints=2, model_dir=tmp_path, verbose=0)
    found = json.loads((tmp_path / "average.json").read_text())
    assert found["steps"] == [3, 4]
    assert found["mlm_loss"] > 0
    last, mean = make_task(tokenizer), weights(task)
    last.fit(shards, **how, model_dir=tmp_path, verbose=0, resume="changed")
    assert weights(last) != mean


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, r"requires the number of updates: fit\(data, steps=…\)"),
        ({"steps": 2, "epochs": 3}, r"no such argument.*Received: 'epochs'"),
        (
            {"steps": 2, "sequence_length": 16, "masking": "phrase"},
            'masking="phrase" requires `phrases`',
        ),
        ({"steps": 2, "sequence_length": 65}, "sequence_length=65, max_positions=64"),
        ({"steps": 2, "phases": "16:0.5,7:0.5"}, r"from 8 to 65,536. Received: 7"),
        ({"steps": 2, "masking": "phrase", "phrases": ("a", "b")}, "one for each phase"),
        (
            {"steps": 2, "phases": "16:1:8:0.2", "final_masked_share": 0.3},
            "final_masked_share and masked shares in phases exclude each other",
        ),
        (
            {"steps": 2, "average_checkpoints": 2, "ema": 0.9},
            "exclude each other: leave out one of them. Received: average_checkpoints=2, ema=0.9",
        ),
        ({"steps": 8, "average_checkpoints": 9}, "requires as many checkpoints"),
        (
            {"steps": 2, "metric": "mlm_loss", "patience": 1, "ema": 0.9},
            "best ones or an average: .*Received: metric='mlm_loss', patience=1, ema=0.9",
        ),
        (
            {"steps": 2, "metric": "mlm_loss", "average_checkpoints": 2, "checkpoint_every": 1},
            "best ones or an average: .*Received: metric='mlm_loss', average_checkpoints=2",
        ),
    ],
)
def test_settings_that_do_not_fit(shards, tokenizer, settings, error):
    with pytest.raises((TypeError, ValueError), match=error):
        make_task(tokenizer).fit(shards, **settings)


def test_held_out_text_is_needed_to_evaluate(tmp_path, tiny_vocabulary, tokenizer):
    bare = write_corpus(tmp_path, tiny_vocabulary, held_out_share=0.0)
    how = {"steps": 1, "batch_size": 4, "sequence_length": 16, "verbose": 0}
    with pytest.raises(ValueError, match=r"needs held-out data. Received: 0 held-out doc"):
        make_task(tokenizer).fit(bare, **how, evaluate_every=1)
    assert make_task(tokenizer).fit(bare, **how).evaluations == []


def test_another_corpus_or_another_vocabulary_is_refused(shards, tokenizer, tmp_path):
    other = kbert.WordPieceTokenizer([*tokenizer.vocabulary, "novel"])
    with pytest.raises(ValueError, match="written with another vocabulary"):
        make_task(other).fit(shards, steps=1)
    with pytest.raises(FileNotFoundError):
        make_task(tokenizer).fit(tmp_path / "none.txt", steps=1)


def objective(task, corpus, **settings):
    return task.make_objective(
        corpus, **{"steps": 100, "batch_size": 8, "sequence_length": 16, **settings}
    )


def asked(task, corpus, **settings):
    """The arguments of the dataset for each phase, after two of its batches, and held out."""
    with mock.patch.object(corpora, "pretraining_dataset") as made:
        found = objective(task, corpus, **settings)
        made.reset_mock()
        for phase in found.plan:
            found.dataset(dataclasses.replace(phase, done=2), "train")
        found.dataset(found.plan[0], "held_out")
    return [call.kwargs for call in made.call_args_list]


def test_each_phase_has_its_part_of_the_way_of_the_masked_share(shards, tokenizer):
    task = make_task(tokenizer)
    names = ("masked_share", "final_masked_share", "share_steps", "first_step")

    def shares(**settings):
        return [tuple(x.get(n) for n in names) for x in asked(task, shards, **settings)]

    found = shares(phases="16:0.25,16:0.75", masked_share=0.3, final_masked_share=0.1)
    assert found == [
        (0.3, 0.25, 25, 2),
        (0.25, pytest.approx(0.1), 75, 2),
        (0.1, None, None, None),  # held-out text
    ]
    constant = [x[0] for x in shares(phases="16:0.5::0.3,16:0.25,16:0.25:8:0.05")]
    assert constant == [0.3, 0.15, 0.05, 0.05]
    assert shares()[1] == (0.15, None, None, None)


def test_each_phase_has_its_lexicon(shards, tokenizer, tmp_path):
    """ERNIE's stages: words, then phrases, then entities; held-out text as in the last."""
    words, names = (str(tmp_path / name) for name in ("words.txt", "names.txt"))
    for path in (words, names):
        with open(path, "w") as file:
            file.write("the quick fox\n")
    task, stages = make_task(tokenizer), {"masking": "phrase", "phases": "16:0.5,16:0.25,16:0.25"}

    def units(**settings):
        found = asked(task, shards, **{**stages, **settings})
        return [(x["masking"], x["phrases"]) for x in found]

    expected = [("whole_word", None), ("phrase", words), *[("phrase", names)] * 2]
    assert units(phrases=f",{words},{names}") == units(phrases=("", words, names)) == expected
    assert units(phrases=words) == [("phrase", words)] * 4
    with pytest.raises(ValueError, match=r"with masking=phrase, one.*masking=token"):
        objective(task, shards, **{**stages, "masking": "token"}, phrases=("", words, names))
    with pytest.raises(
        FileNotFoundError, match=r"No such lexicon.*none.txt"
    ):  # before the first step
        objective(task, shards, **stages, phrases=("", words, str(tmp_path / "none.txt")))
    assert objective(task, shards, **stages, phrases=words).data()["phrases_checksum"] is not None


def test_segments_are_those_of_the_task(shards, tokenizer):
    for settings, segments in (
        ({}, "pairs"),
        ({"next_sentence": False}, "single"),
        ({"sentence_order": True}, "halves"),
    ):
        found = objective(make_task(tokenizer, **settings), shards).options
        assert (found.segments, found.masking) == (segments, "token")
    spans = objective(make_task(tokenizer, next_sentence=False, span_boundary=True), shards)
    assert spans.options.masking == "span"
    hybrid = objective(make_task(tokenizer, kbert.tasks.MaskedAndCausal), shards)
    assert hybrid.more() == {"causal_share": 1 / 16}


def test_the_optimizer_is_the_one_of_fit_on_batches(shards, tokenizer, tmp_path):
    """GPT's, the Transformer's and ELMo's own, as where `fit` is given batches."""
    config = kbert.DecoderConfig(
        vocabulary_size=tokenizer.vocabulary_size, hidden_size=8, num_layers=1, num_heads=2,
        intermediate_size=16, max_positions=32,
    )  # fmt: skip
    gpt = kbert.tasks.CausalLM(kbert.Decoder(config), tokenizer)
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 16}
    config = kbert.Seq2SeqConfig(vocabulary_size=tokenizer.vocabulary_size, **sizes)
    translator = kbert.Translator(kbert.Seq2Seq(config), tokenizer)
    how, rows = {"steps": 30_000}, {"sequence_length": 16}
    objectives = [
        gpt.make_objective(shards, **how, **rows),
        translator.make_objective([("the fox", "the dog")] * 4, **how),
        make_task(tokenizer).make_objective(shards, **how, **rows),
    ]
    for found in objectives:
        found.compile()
        optimizers = (found.task.optimizer, found.task.usual_optimizer(30_000))
        made, usual = (keras.optimizers.serialize(x)["config"] for x in optimizers)
        assert {**made, "name": ""} == {**usual, "name": ""}


def test_the_mean_of_checkpoints_needs_their_folder(shards, tokenizer):
    how = {"steps": 40, "batch_size": 4, "sequence_length": 16, "average_checkpoints": 2}
    found = objective(make_task(tokenizer), shards, **how)
    assert (found.options.checkpoint_every, found.options.keep_checkpoints) == (5, 3)
    with pytest.raises(ValueError, match=r"requires a `model_dir`.*average_checkpoints=2"):
        found.fit()


def make_translator(tokenizer, **changes):
    keras.utils.set_random_seed(3)
    config = kbert.Seq2SeqConfig(
        vocabulary_size=tokenizer.vocabulary_size, hidden_size=16, num_layers=1, num_heads=2,
        intermediate_size=32, max_positions=32, **changes,
    )  # fmt: skip
    return kbert.Translator(kbert.Seq2Seq(config), tokenizer, label_smoothing=0.0)


@pytest.mark.parametrize("noise", ["bart", pytest.param("mass", marks=pytest.mark.slow)])
def test_an_encoder_decoder_restores_corrupted_text(shards, tokenizer, tmp_path, noise):
    settings = {"batch_size": 4, "sequence_length": 24, "noise": noise, "verbose": 0}
    whole = make_translator(tokenizer)
    history = whole.fit(shards, steps=4, **settings, model_dir=tmp_path / "whole")
    assert history.evaluations[-1]["lm_loss"] > 0
    again = make_translator(tokenizer)
    with pytest.raises(Terminated):
        again.fit(shards, steps=4, **settings, model_dir=tmp_path / "parts", callbacks=[StopAt(2)])
    again.fit(shards, steps=4, **settings, model_dir=tmp_path / "parts")
    for one, other in zip(whole.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_decoder_begins_as_the_task_does(shards, tokenizer):
    task = make_translator(tokenizer)
    for noise in ("bart", "prefix_lm", "pegasus"):
        found = task.make_objective(shards, steps=1, sequence_length=24, batch_size=4, noise=noise)
        batch = next(iter(found.dataset(found.plan[0], "train").as_numpy_iterator()))
        assert set(batch["decoder_token_ids"][:, 0]) == {tokenizer.cls_id}
    usual = task.make_objective(shards, steps=1, sequence_length=24, batch_size=4)
    batch = next(iter(usual.dataset(usual.plan[0], "train").as_numpy_iterator()))
    assert not (batch["targets"] == tokenizer.cls_id).any()
    bart = kbert.TextToText(task.seq2seq, tokenizer, special_tokens="all")
    found = bart.make_objective(shards, steps=1, sequence_length=24, batch_size=4)
    batch = next(iter(found.dataset(found.plan[0], "train").as_numpy_iterator()))
    assert (batch["targets"][:, 0] == tokenizer.cls_id).all()
    asked = {"steps": 1, "sequence_length": 24, "batch_size": 4}
    with pytest.raises(ValueError, match=r"targets_begin of the noise must be True.*Received: no"):
        bart.make_objective(shards, noise="bart:targets_begin=false", **asked)


def test_positions_of_a_fragment_need_embeddings_of_positions(shards, tokenizer):
    task = make_translator(tokenizer, positions="relative")
    with pytest.raises(ValueError, match=r"and `decoder_padding_mask`. Received: .*position_ids"):
        task.fit(shards, steps=1, sequence_length=24, batch_size=4, noise="mass", verbose=0)


def test_a_decoder_trains_on_the_same_shards(shards, tokenizer, tmp_path):
    config = kbert.DecoderConfig(
        vocabulary_size=tokenizer.vocabulary_size, hidden_size=16, num_layers=1, num_heads=2,
        intermediate_size=32, max_positions=32,
    )  # fmt: skip
    task = kbert.tasks.CausalLM(kbert.Decoder(config), tokenizer)
    history = task.fit(
        shards, steps=4, batch_size=4, sequence_length=32, model_dir=tmp_path, verbose=0
    )
    assert history.steps[-1]["step"] == 4
    assert history.evaluations[-1]["lm_loss"] > 0
    with pytest.raises(ValueError, match="sequence_length=33, max_positions=32"):
        task.fit(shards, steps=1, sequence_length=33)
    with pytest.raises(ValueError, match=r"masks nothing.*Received: phases=16:1:4:0.2"):
        task.fit(shards, steps=1, phases="16:1:4:0.2")


def test_batches_with_a_folder_resume(shards, tokenizer, tmp_path):
    """A dataset that the user has made: it is known again by the position in its batches."""
    data = kbert.data.pretraining_dataset(shards, tokenizer, sequence_length=16, batch_size=4)
    how = {"steps_per_epoch": 3, "epochs": 2, "verbose": 0}
    whole = make_task(tokenizer)
    whole.fit(data, **how, model_dir=tmp_path / "whole")
    with pytest.raises(Terminated):
        make_task(tokenizer).fit(data, **how, model_dir=tmp_path / "halves", callbacks=[StopAt(4)])
    again = make_task(tokenizer)
    assert again.fit(data, **how, model_dir=tmp_path / "halves").step == 6
    assert weights(again) == weights(whole)
    plain = data.map(lambda batch: {k: x for k, x in batch.items() if k != "position"})
    with pytest.raises(ValueError, match=r"batches must have a `position`.*Received: .* without"):
        make_task(tokenizer).fit(plain, **how, model_dir=tmp_path / "plain")
    with pytest.raises(ValueError, match=r"pass `steps_per_epoch`.*infinite"):
        make_task(tokenizer).fit(data, model_dir=tmp_path / "endless")


def test_a_student_learns_from_a_corpus(shards, tokenizer, tmp_path):
    teacher = make_task(tokenizer, next_sentence=False)
    student = kbert.student(teacher, 1)
    distiller = kbert.distillation.Distiller(
        student, teacher, [kbert.distillation.SoftTargets(), kbert.distillation.OwnLoss()]
    )
    how = {"steps": 2, "batch_size": 4, "sequence_length": 16, "verbose": 0}
    history = distiller.fit(shards, **how, model_dir=tmp_path)
    assert history.steps[-1]["soft_targets"] > 0
    record = json.loads((tmp_path / "run.json").read_text())["task"]
    assert len(record["distilled_by"]) == 2
    for weight in teacher.weights:
        weight.assign(weight + 0.1)
    with pytest.raises(ValueError, match=r"task.teacher_weights was"):
        distiller.fit(shards, **how, model_dir=tmp_path)
