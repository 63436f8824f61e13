"""`kbert-distill` as it is typed: on text and on a task, gone on with, and what is wrong."""

import json
import re
import types

import keras
import pytest
from absl import flags
from absl.testing import flagsaver

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.core import late
from kbert.core.registry import FORMER_SETTINGS
from kbert.experiments import Settings
from kbert.io.arrays import read_safetensors
from pipelines import distill, distilling
from pipelines.distill_flags import flags_of_modes, student_arguments
from tests.killing import copied_at, ends_before, signalled
from tests.pipelines.conftest import COLUMNS
from tests.pipelines.test_pretrain import write_corpus
from tests.processes import ends_well, start_program

SIZES = {
    "hidden_size": 16,
    "num_layers": 2,
    "num_heads": 2,
    "intermediate_size": 24,
    "max_positions": 32,
    "initializer_range": 0.15,
}
TEXT = ("--steps=4", "--batch_size=4", "--sequence_length=16", "--checkpoint_every=2")
# What the published student has is too wide for a test, and has more heads than the teacher.
NARROW = ("--set=hidden_size=8", "--set=num_heads=2", "--set=intermediate_size=12")


def make_teacher(kind, folder, tokenizer, *arguments, **more):
    keras.utils.set_random_seed(2)
    config = kbert.EncoderConfig(vocabulary_size=tokenizer.vocabulary_size, **SIZES, **more)
    kind(kbert.Encoder(config), tokenizer, *arguments).save_to_preset(folder)
    return folder


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory, tiny_vocabulary):
    return write_corpus(tmp_path_factory.mktemp("corpus"), tiny_vocabulary)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, tokenizer):
    """With a head for masks and one for pairs, which nobody asks."""
    return make_teacher(kbert.tasks.Pretraining, tmp_path_factory.mktemp("teacher"), tokenizer)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, tokenizer):
    """A teacher of ham and spam, its classes in another order than the alphabet's."""
    folder = tmp_path_factory.mktemp("classifier")
    return make_teacher(kbert.tasks.TextClassifier, folder, tokenizer, ["spam", "ham"])


@pytest.fixture(scope="module")
def on_text(call, data_dir, teacher):
    """Calls the program on the shards; the teacher may be another one."""

    def on_text(recipe, model_dir, *more):
        own = (
            () if any(flag.startswith("--teacher") for flag in more) else (f"--teacher={teacher}",)
        )
        where = (f"--data_dir={data_dir}", f"--model_dir={model_dir}")
        call(distill, f"--recipe={recipe}", *where, *own, *TEXT, *more)

    return on_text


@pytest.fixture(scope="module")
def on_mail(call, mail_file, classifier):
    """Calls it on the mail."""

    def on_mail(recipe, output_dir, *more):
        data = (f"--train={mail_file}", "--dev_share=0.25", *COLUMNS)
        own = (f"--recipe={recipe}", f"--teacher={classifier}", f"--output_dir={output_dir}")
        call(distill, "--task=classify", *data, *own, "--epochs=1", "--batch_size=8", *more)

    return on_mail


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, on_text):
    """Folder of a finished run of DistilBERT's, the student and the same run when killed."""
    folder = tmp_path_factory.mktemp("distilbert")
    with copied_at(2, folder / "run", folder / "killed"):
        on_text("distilbert", folder / "run", f"--preset_dir={folder / 'student'}")
    return folder


def steps(folder):
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_distilbert_on_text(run_dir):
    first, *_, last = steps(run_dir / "run")
    assert last["step"] == 4
    assert last["loss"] < first["loss"]
    parts = ("weighted_soft_targets", "weighted_mlm_loss", "hidden_cosine")
    assert last["loss"] == pytest.approx(sum(last[name] for name in parts), rel=1e-5)
    assert last["weighted_soft_targets"] == pytest.approx(5 * last["soft_targets"], rel=1e-5)
    assert "nsp_loss" not in last
    assert 0 <= last["agreement"] <= 1
    settings = json.loads((run_dir / "run" / "run.json").read_text())
    assert settings["encoder"]["num_layers"] == 1
    assert settings["task"]["teacher"]["num_layers"] == 2
    assert "SoftTargets(weight=5.0, temperature=2.0" in settings["task"]["distilled_by"][0]

    student = kbert.tasks.Pretraining.from_preset(run_dir / "student")
    assert (student.encoder.config.num_segments, student.encoder.pooler) == (0, None)
    assert not student.next_sentence


def test_no_checkpoint_holds_the_teacher(run_dir):
    (path, *_) = sorted((run_dir / "run" / "checkpoints").glob("*.safetensors"))
    size = sum(array.size for array in read_checkpoint(run_dir / "student").arrays.values())
    saved = sum(array.size for array in read_safetensors(path).values())
    # Weights and two moments, and a few numbers that say where the run is.
    assert 3 * size <= saved < 3 * size + 100


@pytest.mark.slow
def test_a_run_that_was_killed_resumes_to_the_same_bytes(run_dir, on_text):
    on_text("distilbert", run_dir / "killed")
    logs = [run_dir / name / "steps.jsonl" for name in ("run", "killed")]
    assert logs[0].read_bytes() == logs[1].read_bytes()


@pytest.mark.parametrize(
    ("recipe", "parts"),
    [
        ("tinybert-general", {"embeddings", "hidden_states", "attention_scores"}),
        ("minilm", {"attention_relation", "value_relation"}),
    ],
)
@pytest.mark.slow
def test_a_teacher_without_a_head_makes_an_encoder(
    on_text, classifier, tmp_path, recipe, parts, capsys
):
    preset = tmp_path / "preset"
    more = (f"--teacher={classifier}", f"--preset_dir={preset}", "--warmup_steps=0")
    on_text(recipe, tmp_path / "run", *NARROW, *more)
    last = steps(tmp_path / "run")[-1]
    assert parts <= set(last)
    assert "mlm_loss" not in last
    assert last["loss"] == pytest.approx(sum(last[name] for name in parts), rel=1e-5)
    out = capsys.readouterr().out
    assert f"recipe {recipe}: " in out
    assert "steps an epoch\nteacher: 2 layers of 16, " in out
    assert "student: 1 layer of 8, " in out
    assert "randomly initialised" in out
    assert f"{sorted(parts)[0]} " in out.partition("step 4/4 · loss ")[2]
    assert read_checkpoint(preset).task is None
    assert kbert.Encoder.from_preset(preset).config.hidden_size == 8
    assert kbert.load_tokenizer(preset).vocabulary_size


@pytest.mark.slow
def test_a_student_may_begin_as_an_earlier_one(run_dir, on_text, tmp_path, capsys):
    """And its weights are those of the folder: at a rate of next to nothing it stays so."""
    more = (f"--student={run_dir / 'student'}", "--term_weights=own=0,soft_targets=1")
    more += ("--temperature=4", "--learning_rate=1e-30", f"--preset_dir={tmp_path / 'preset'}")
    on_text("distilbert", tmp_path / "run", *more)
    before, after = (read_checkpoint(f).arrays for f in (run_dir / "student", tmp_path / "preset"))
    assert all((before[name] == after[name]).all() for name in before)
    out = capsys.readouterr().out
    terms = "SoftTargets(weight=1.0, temperature=4.0, positions='all', heads=()) + LastHidden"
    assert f"loss: {terms}" in out
    assert f"initialised from {run_dir / 'student'}" in out
    assert "learning_rate=1e-30 (0.0005)" in out


@pytest.fixture(scope="module")
def wide_teacher(tmp_path_factory, tokenizer):
    """As an IB-BERT is: wide inside its layers."""
    part = {"name": "bottleneck", "width": 24, "num_feed_forwards": 1, "no_norm": False}
    more = {"embedding_size": 8, "part": {**part, "attention_input": "whole"}}
    folder = tmp_path_factory.mktemp("wide_teacher")
    return make_teacher(kbert.tasks.Pretraining, folder, tokenizer, **more)


MOBILE = ("--steps=12", "--checkpoint_every=2", "--set=intermediate_size=24")
MOBILE += ('--set=part={"name": "bottleneck", "width": 8}',)


@pytest.mark.slow
def test_mobilebert_trains_layer_by_layer_and_then_its_head(
    on_text, wide_teacher, tmp_path, capsys
):
    """Both in one command, and each resumes where it was killed."""
    more = (*MOBILE, f"--teacher={wide_teacher}")
    folder, transfer = tmp_path / "run", tmp_path / "run" / "mobilebert-transfer"
    killed = (tmp_path / name for name in ("killed", "killed later"))
    with (
        copied_at(2, transfer, tmp_path / "killed" / "mobilebert-transfer"),
        copied_at(6, folder, tmp_path / "killed later"),
    ):
        on_text("mobilebert", folder, *more, f"--preset_dir={tmp_path / 'student'}")
    first = steps(transfer)
    assert [line["step"] for line in first][-1] == 4  # 240 of 740
    assert "mlm_loss" not in first[-1]
    parts = ("weighted_feature_maps", "weighted_feature_means", "weighted_feature_variances")
    for line in first:
        whole = sum(line[name] for name in (*parts, "attention_maps"))
        assert line["loss"] == pytest.approx(whole, rel=1e-5)
    last = steps(folder)[-1]
    assert last["step"] == 8
    parts = ("weighted_mlm_loss", "weighted_soft_targets_masked_lm", "nsp_loss")
    assert last["loss"] == pytest.approx(sum(last[name] for name in parts), rel=1e-5)
    out = capsys.readouterr().out
    assert "student: 2 layers of 16, " in out
    assert "randomly initialised except for the teacher's embeddings and heads" in out
    assert f"initialised from {transfer / 'preset'}" in out
    student = kbert.tasks.Pretraining.from_preset(tmp_path / "student")
    assert student.next_sentence
    assert student.encoder.config.part == {"name": "bottleneck", "width": 8}

    for again in killed:
        on_text("mobilebert", again, *more)
        for name in ("mobilebert-transfer/steps.jsonl", "steps.jsonl"):
            assert (folder / name).read_bytes() == (again / name).read_bytes()


@pytest.mark.slow
def test_a_preview_of_mobilebert_is_that_of_its_first_half(on_text, wide_teacher, tmp_path, capsys):
    on_text("mobilebert", tmp_path / "run", *MOBILE, f"--teacher={wide_teacher}", "--dry_run")
    out = capsys.readouterr().out
    assert "then 8 steps of mobilebert, starting from the student of these 4" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_dry_run_tells_what_a_run_takes(on_text, tmp_path, capsys):
    on_text("distilbert", tmp_path / "run", "--dry_run", "--positions=masked", "--init=1")
    out = capsys.readouterr().out
    assert "predicted: " in out
    assert "memory: weights" in out
    assert "4 steps of 4 x 16 tokens" in out
    assert "initialised with layers [1] of the teacher" in out
    assert "positions='masked'" in out
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_two_stages_on_a_task(on_mail, classifier, tmp_path, capsys):
    out_dir, preset = tmp_path / "out", tmp_path / "preset"
    more = ("--first_epochs=1", "--first_learning_rate=1e-3", f"--preset_dir={preset}")
    more += ("--num_layers=1", "--layers=2", f"--cache_dir={tmp_path / 'cache'}")
    on_mail("tinybert-task", out_dir, *more)
    out = capsys.readouterr().out
    assert f"teacher: {classifier}; student: num_layers=1\n" in out
    assert "model    layers  accuracy" in out
    assert "\nstudent       1 " in out
    found = json.loads((out_dir / "comparison.json").read_text())
    accuracies = [found[name]["values"]["accuracy"] for name in ("student", "teacher")]
    assert found["retention"] == pytest.approx(accuracies[0] / accuracies[1])
    assert found["student"]["parameters"] < found["teacher"]["parameters"]
    assert found["speed"] > 0
    run = json.loads((out_dir / "run.json").read_text())
    assert run["first_stages"] == {"intermediate": {"epochs": 1, "learning_rate": 1e-3}}
    assert "HiddenStates(weight=1.0, layers=(2,))" in run["terms"]["intermediate"]
    for stage in ("intermediate", "prediction"):
        assert len(steps(out_dir / "training" / stage)) == 6
        assert not (out_dir / "training" / stage / "checkpoints").exists()
    assert kbert.tasks.TextClassifier.from_preset(preset).labels == ["spam", "ham"]

    on_mail("tinybert-task", out_dir, *more)
    assert f"{out_dir} already holds finished results:" in capsys.readouterr().out


@pytest.mark.slow
def test_several_teachers_and_an_ensemble_of_students(
    call, mail_file, classifier, tokenizer, tmp_path, capsys
):
    other = make_teacher(kbert.TextClassifier, tmp_path / "other", tokenizer, ["spam", "ham"])
    data = (f"--train={mail_file}", "--dev_share=0.25", *COLUMNS, "--epochs=1", "--batch_size=8")
    more = ("--task=classify", f"--teacher={classifier},{other}", "--recipe=distilbert")
    with pytest.raises(SystemExit, match="Received: LastHiddenCosine with 2 teachers"):
        call(distill, *data, *more, f"--output_dir={tmp_path / 'refused'}")
    where = (f"--output_dir={tmp_path / 'out'}", f"--cache_dir={tmp_path / 'cache'}")
    heads = ("--term_weights=hidden_cosine=0", "--seeds=2", "--ensemble")
    call(distill, *data, *more, *where, *heads)
    out = capsys.readouterr().out
    assert f"teacher: {classifier}, {other}; student: " in out
    assert f"ensemble: {tmp_path / 'out' / 'ensemble'}" in out
    run = json.loads((tmp_path / "out" / "seed-0" / "run.json").read_text())
    assert len(run["teacher_checksum"].split()) == 2
    students = kbert.Task.from_preset(tmp_path / "out" / "ensemble")
    assert [task.encoder.config.num_layers for task in students.members] == [1, 1]


@pytest.mark.slow
def test_augmented_data_takes_the_place_of_train(
    call, mail_file, mail, classifier, tmp_path, monkeypatch, capsys
):
    table = kbert.data.as_table({name: column * 2 for name, column in mail.items()})
    monkeypatch.setattr(distilling, "read_augmented", lambda folder: table)
    own = ("--recipe=distilbert", f"--teacher={classifier}", f"--output_dir={tmp_path / 'out'}")
    data = ("--augmented=folder", f"--dev={mail_file}", *COLUMNS)
    call(distill, "--task=classify", *own, *data, "--dry_run")
    out = capsys.readouterr().out
    assert "examples: train 128, dev 64" in out
    assert " s per step distilled\n" in out
    assert "s per step without a teacher" in out
    assert not (tmp_path / "out").exists()
    with pytest.raises(
        SystemExit, match=r"--augmented requires --dev instead of .*--dev_share=0.25"
    ):
        call(distill, "--task=classify", *own, "--augmented=folder", "--dev_share=0.25")
    with pytest.raises(SystemExit, match=r"--train and --augmented must be given.*--train=None"):
        call(distill, "--task=classify", *own, "--dev_share=0.25")


@pytest.mark.parametrize(
    ("recipe", "more", "message"),
    [
        ("distilbert", ("--task=sst2",), "must be given. Received: --data_dir and --task"),
        (
            "distilbert",
            ("--epochs=3",),
            r"not supported on text \(--data_dir\). Received: --epochs=3",
        ),
        (
            "distilbert",
            ("--term_weights=embeddings=1",),
            "distilbert: soft_targets, own, hid",
        ),
        (
            "distilbert",
            ("--term_weights=own",),
            "must be term=weight, separated by commas. .*=own$",
        ),
        (
            "distilbert",
            ("--layers=2",),
            "--layers is not supported by the recipe distilbert: none of its loss terms",
        ),
        ("distilbert", ("--init=first",), "--init must be every_other, embeddings, .*--init=first"),
        ("distilbert", ("--init=2",), "a layer of the teacher, from 0 to 1, .*Received: \\[2\\]"),
        ("distilbert", ("--student=gpt2",), "--student must be an encoder.*--student=gpt2"),
        ("distilbert", ("--student=bert-tinny",), "bert-tiny"),
        (
            "distilbert",
            ("--student=a/b", "--num_layers=2"),
            "cannot be combined with a student from.*--num_layers=2",
        ),
        ("distilbert", ("--sequence_length=64",), "sequence_length=64, max_positions=32"),
        ("distilbert", ("--teacher=a/b,{other}",), "a/b"),
        (
            "distilbert",
            ("--teacher={classifier},{classifier}",),
            r"must be a single model on text \(--data_dir\); on a task \(--task\)",
        ),
        ("distilbert", ("--teacher={classifier}",), "masked-LM head; tinybert-general and minilm"),
        ("distilbert", ("--teacher={other}",), "--vocabulary=.*entries .* in the teacher"),
        ("tinybert-task", (), "requires the data of a task, not text: .*distilbert, tinybert-gene"),
        (
            "tinybert-general",
            ("--temperature=2",),
            "--temperature is not supported by the recipe ti",
        ),
        ("tinybert-general", ("--layers=3", *NARROW), "from 1 to 2, or None. Received: 3 in the"),
        ("tinybert-general", ("--layers=a",), "--layers must be uniform, last, or.*--layers=a"),
        ("tinybert-general", (), "student and teacher must agree in num_heads. Received: 12 and 2"),
        (
            "mobilebert",
            ("--steps=1",),
            "must be larger: .* 32% of the steps for mobilebert-transfer",
        ),
        ("mobilebert", (), "one step per layer, 2 or more. Received: 1 steps"),
        ("minilm", ("--term_weights=relations=0",), "must leave at least one term of the loss"),
        ("minilm", ("--export_dir=e",), "trains no head, .*--export_dir=e"),
    ],
)
def test_mistakes_on_text(
    on_text, classifier, tmp_path, tokenizer, tiny_vocabulary, recipe, more, message
):
    if "--teacher={other}" in more:
        longer = kbert.WordPieceTokenizer([*tiny_vocabulary, "quickfox"])
        make_teacher(kbert.tasks.Pretraining, tmp_path / "other", longer)
    more = [flag.format(classifier=classifier, other=tmp_path / "other") for flag in more]
    with pytest.raises(SystemExit, match=f"^kbert-distill: .*{message}"):
        on_text(recipe, tmp_path / "run", *more)
    assert not (tmp_path / "run").exists()


def test_how_long_must_be_said(call, data_dir, teacher):
    own = ("--recipe=minilm", f"--teacher={teacher}", "--model_dir=m")
    with pytest.raises(SystemExit, match=r"must be given; the shards have about .* steps an epoch"):
        call(distill, f"--data_dir={data_dir}", *own)
    with pytest.raises(SystemExit, match="--model_dir must be given"):
        call(distill, f"--data_dir={data_dir}", "--recipe=minilm", f"--teacher={teacher}")
    with pytest.raises(
        SystemExit, match=r"--task \(the data of a task\) must be given. Received: neither"
    ):
        call(distill, "--recipe=minilm", f"--teacher={teacher}")
    with pytest.raises(SystemExit, match=r"--teacher, which would be overwritten.*--preset_dir="):
        call(distill, f"--data_dir={data_dir}", *own, f"--preset_dir={teacher}")
    with pytest.raises(flags.IllegalFlagValueError, match="--teacher must have a value"):
        call(distill, "--recipe=minilm")


@pytest.mark.parametrize(
    ("recipe", "more", "message"),
    [
        ("tinybert-task", ("--warmup_steps=9",), r"on a task \(--task\). .*--warmup_steps=9"),
        ("minilm", (), "on text, not on the data of a task.*recipe='minilm'"),
        (
            "distilbert",
            ("--teacher={pretrained}",),
            "a TextClassifier with its head, as kbert",
        ),
        ("tinybert-task", ("--term_weights=soft_targets=0",), "none for the stage 'prediction'"),
        ("distilbert", ("--first_epochs=2",), "distilbert has only one stage.*'epochs': 2"),
        ("distilbert", ("--set=hidden_size=8",), 'init="random"'),
        ("distilbert", ("--labels=ham,spam,eggs",), "must be classes of the teacher.*'eggs' in"),
        ("tinybert-task", ("--layers=last", "--num_layers=3"), "at least as deep as the student"),
        ("distilbert", ("--strategy=model_parallel",), "model_parallel requires model_devices"),
        ("distilbert", ("--strategy=tpu",), "This TensorFlow finds no TPU"),
    ],
)
def test_mistakes_on_a_task(on_mail, teacher, tmp_path, recipe, more, message):
    more = [flag.format(pretrained=teacher) for flag in more]
    with pytest.raises(SystemExit, match=f"^kbert-distill: .*{message}"):
        on_mail(recipe, tmp_path / "out", *more)


def test_every_flag_is_of_text_of_tasks_or_of_both():
    with flagsaver.flagsaver():
        before = set(flags.FLAGS)
        distill.define_flags()
        defined = set(flags.FLAGS) - before
        from kbert.experiments import LEARNING_RATES

        assert flags.FLAGS["grid_learning_rates"].value == [f"{rate:g}" for rate in LEARNING_RATES]
    text_flags, task_flags = map(set, flags_of_modes())
    assert not text_flags & task_flags
    assert text_flags | task_flags <= defined
    both = defined - text_flags - task_flags
    distillation = {"recipe", "teacher", "student", "num_layers", "init", "set", "temperature"}
    distillation |= {"term_weights", "layers", "preset_dir", "export_dir", "dry_run"}
    distillation |= {"allow_changes", "ignore", "task_module", *FORMER_SETTINGS}
    assert both - distillation <= set(Settings.names())
    assert len(late.TABLE["term"]) == 11


@pytest.mark.slow
def test_help_teaches_and_a_kill_costs_nothing(data_dir, teacher, tmp_path):
    def start(folder, *more, before=""):
        own = ("--recipe=distilbert", f"--teacher={teacher}", f"--data_dir={data_dir}", *TEXT)
        return start_program("distill", *own, f"--model_dir={folder}", *more, before=before)

    longer = ("--steps=60", "--checkpoint_every=1")
    ends_well(start(tmp_path / "whole", *longer))
    broken = start(tmp_path / "broken", *longer, before=signalled())
    ends_before(broken, tmp_path / "broken", last_step=60)
    ends_well(start(tmp_path / "broken", *longer))
    logs = [tmp_path / name / "steps.jsonl" for name in ("whole", "broken")]
    assert logs[0].read_bytes() == logs[1].read_bytes()
    settings = json.loads((tmp_path / "whole" / "run.json").read_text())["settings"]
    assert settings["learning_rate"] == 5e-4
    assert "task" not in settings

    out, _ = start(tmp_path, "--help").communicate()
    assert "kbert-distill --recipe=tinybert-task --task=sst2" in out
    assert re.search(r"minilm +text +attention and relation of values", out)
    for flag in ("term_weights", "first_epochs", "phases", "augmented", "num_layers"):
        assert f"-{flag}" in out or f"]{flag}" in out


@pytest.mark.parametrize("student", ["roberta-base", "bert-tiny"])
def test_a_student_of_the_family_reads_the_teacher_s_tokens(student):
    options = types.SimpleNamespace(student=student, num_layers=None, init=None, set=[])
    made = student_arguments(options)
    assert made["hidden_size"] == kbert.family(student).hidden_size
    assert not {"vocabulary_size", "max_positions"} & made.keys()
    assert made.get("padding_id") is None  # the teacher's, or places are counted
