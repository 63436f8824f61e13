"""Training by a teacher: who moves and who does not, on one device and two, ended and resumed."""

import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

import kbert
from kbert.distillation import (
    AttentionRelations,
    AttentionScores,
    Distiller,
    EmbeddingLoss,
    HiddenStates,
    LastHiddenCosine,
    OwnLoss,
    SoftTargets,
)
from kbert.edit import adapters
from kbert.models.weights import get_arrays
from kbert.tasks import TextEmbedder
from kbert.training.optimization.optimizers import AdamW
from tests.distillation import reference, toys
from tests.harness import assert_close, randomise, to_numpy
from tests.tasks import toy

pytestmark = pytest.mark.tensorflow

TINYBERT = [EmbeddingLoss(), HiddenStates(), AttentionScores()]
NARROW = {"num_layers": 2, "hidden_size": 8, "intermediate_size": 12}


@pytest.fixture(scope="module")
def teacher(tokenizer):
    return toys.make_task("classes", tokenizer)


def fox_texts(count, seed=0):
    rng = np.random.default_rng(seed)
    words = "the a red blue green pen fox dog cat book house river tree".split()
    return [" ".join(rng.choice(words, rng.integers(2, 12))) for _ in range(count)]


def test_gradients_reach_the_student_and_the_projection_alone(tokenizer):
    teacher = toys.make_task("text", tokenizer)
    student = toys.make_task("text", tokenizer, seed=1, **NARROW)
    parts = [*TINYBERT, AttentionRelations(), SoftTargets(), OwnLoss()]
    distiller = Distiller(student, teacher, parts)
    batch = toys.make_batch("text", teacher)
    with tf.GradientTape() as tape:
        tape.watch([v.value for v in teacher.variables if v.dtype == "float32"])
        losses, _ = distiller.loss_terms(batch, training=True)
        loss = sum(total for total, _ in losses.values())
    moved = {v.path: v.value for v in distiller.trainable_variables}
    still = [v.value for v in teacher.trainable_variables]
    gradients = tape.gradient(loss, [list(moved.values()), still])
    assert gradients[1] == [None] * len(still)
    for path, gradient in zip(moved, gradients[0], strict=True):
        assert gradient is not None, path
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 0, path


def test_there_is_one_projection_for_all(tokenizer):
    teacher = toys.make_task("text alone", tokenizer)
    student = toys.make_task("text alone", tokenizer, seed=1, **NARROW)
    distiller = Distiller(student, teacher, TINYBERT)
    theirs = {id(v) for v in teacher.variables}
    assert not [v.path for v in distiller.variables if id(v) in theirs]
    ours = {id(v) for v in student.variables}
    extra = {v.path: v for v in distiller.variables if id(v) not in ours}
    shapes = {path: tuple(v.shape) for path, v in extra.items()}
    assert shapes == {"projection/kernel": (8, 16), "projection/bias": (16,)}
    # Each of the parts alone moves it, but the scores, which have no width.
    batch = toys.make_batch("text alone", teacher)
    for part, moves in zip(TINYBERT, (True, True, False), strict=True):
        distiller.terms = (part,)
        with tf.GradientTape() as tape:
            ((total, _),) = distiller.loss_terms(batch, training=True)[0].values()
        gradient = tape.gradient(total, distiller.projection.kernel.value)
        assert (gradient is not None) == moves
    assert Distiller(student, teacher, [AttentionScores(), OwnLoss()]).projection is None


def test_the_teacher_stays_as_it_was_bit_for_bit(tokenizer, teacher):
    before = teacher.get_weights()
    student = kbert.student(teacher, 2)
    distiller = Distiller(student, teacher, [*TINYBERT, SoftTargets(), OwnLoss()])
    texts = fox_texts(8)
    labels = [["a", "b", "c"][i % 3] for i in range(8)]
    options = {"batch_size": 4, "learning_rate": 1e-2, "validation_data": (texts, labels)}
    history = distiller.fit(texts, labels, epochs=1, verbose=0, **options)
    for found, wanted in zip(teacher.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, wanted)
    start = kbert.student(teacher, 2)
    pairs = zip(student.get_weights(), start.get_weights(), strict=True)
    assert all(np.abs(a - b).max() > 0 for a, b in pairs)
    logged = set(history.history)
    assert {"embeddings", "hidden_states", "attention_scores", "soft_targets"} < logged
    assert {"cross_entropy", "accuracy", "agreement", "val_accuracy", "val_loss"} < logged


@pytest.mark.slow
def test_a_student_comes_to_its_teachers_answers(tokenizer):
    """Of half of its layers, on few texts; with four seeds agreement rose from 0.3 to 0.9."""
    teacher = toys.make_task("classes", tokenizer, sigma=0.2)
    texts = fox_texts(32)
    spread_answers(teacher, texts)
    answers = [answer["label"] for answer in teacher.predict(texts)]
    largest = max(answers.count(label) for label in teacher.labels) / len(answers)
    assert largest < 0.6
    student = kbert.student(teacher, 2)
    distiller = Distiller(student, teacher, [SoftTargets(temperature=2.0)])
    options = {"epochs": 40, "batch_size": 16, "learning_rate": 3e-3, "verbose": 0}
    history = distiller.fit(texts, answers, **options).history
    assert history["soft_targets"][-1] < 0.1 * history["soft_targets"][0]
    assert history["agreement"][0] < 0.7
    assert history["agreement"][-1] > 0.8
    both = [[x["label"] for x in task.predict(texts)] for task in (student, teacher)]
    assert np.mean([a == b for a, b in zip(*both, strict=True)]) > 0.8


def spread_answers(task, texts):
    """Centres and widens the head's logits on these texts: random weights prefer one class."""
    probabilities = np.array([list(x["probabilities"].values()) for x in task.predict(texts)])
    logits = np.log(probabilities)
    logits -= logits.mean(1, keepdims=True)  # what is the same for all classes changes nothing
    kernel, bias = task.classifier.weights
    scale = 2.0 / logits.std(0).mean()
    kernel.assign(kernel.numpy() * scale)
    bias.assign((bias.numpy() - logits.mean(0)) * scale)


def trained(tokenizer, name, data, parts, scope=None, micro_batches=1, **changes):
    """The losses of two steps and the weights after them."""
    teacher = toys.make_task(name, tokenizer, num_layers=2)
    with scope or contextlib.nullcontext():
        keras.utils.set_random_seed(2)
        student = toys.make_task(name, tokenizer, seed=1, **{**NARROW, "num_layers": 1})
        distiller = Distiller(student, teacher, parts)
        # Of Adam's first steps only the sign of a gradient counts, and with it every rounding.
        distiller.compile(
            keras.optimizers.SGD(0.05), micro_batches=micro_batches, jit_compile=False, **changes
        )
    history = distiller.fit(data, epochs=2, steps_per_epoch=1, verbose=0)
    return history.history, distiller.get_weights()


@pytest.mark.slow
def test_replicas_and_micro_batches_train_as_one(tokenizer, mirrored):
    """Rows with other numbers of tokens and masks; text is the task with most heads."""
    parts = [*TINYBERT, AttentionRelations(), SoftTargets(temperature=2.0, weight=5.0), OwnLoss()]
    batch = toys.make_batch("text", toys.make_task("text", tokenizer))
    batch = {key: np.concatenate([x, x])[:8] for key, x in batch.items()}
    data = tf.data.Dataset.from_tensors(batch).repeat()
    one = trained(tokenizer, "text", data, parts)
    assert one[0]["loss"][1] < one[0]["loss"][0]
    for other in (
        trained(tokenizer, "text", data, parts, scope=mirrored.scope()),
        trained(tokenizer, "text", data, parts, micro_batches=4),
    ):
        assert other[0].keys() == one[0].keys()
        for name, values in one[0].items():
            np.testing.assert_allclose(other[0][name], values, rtol=2e-4, err_msg=name)
        for found, wanted in zip(other[1], one[1], strict=True):
            assert_close(found, wanted, 1e-4)


@pytest.mark.slow
def test_xla(tokenizer):
    """One update compiled, with every part that reads inner tensors."""
    teacher = toys.make_task("text alone", tokenizer, num_layers=2)
    student = toys.make_task("text alone", tokenizer, seed=1, num_layers=1, hidden_size=8)
    relations = AttentionRelations(relations=("attention", "query"), num_relation_heads=4)
    soft = SoftTargets(positions="all")
    distiller = Distiller(student, teacher, [*TINYBERT, relations, soft])
    batch = toys.make_batch("text alone", teacher)
    wanted = distiller.loss_terms(batch, training=True)[0]
    wanted = {name: float(total / count) for name, (total, count) in wanted.items()}
    distiller.compile(AdamW(1e-3), jit_compile=True)
    logs = distiller.train_on_batch(batch, return_dict=True)
    assert {name: float(logs[name]) for name in wanted} == pytest.approx(wanted, rel=1e-3)


def test_mixed_bfloat16(tokenizer):
    parts = [*TINYBERT, AttentionRelations(), SoftTargets(), OwnLoss()]

    def losses(ours, theirs):
        teacher = toys.make_task("text", tokenizer, dtype=theirs, num_layers=2)
        student = toys.make_task("text", tokenizer, seed=1, dtype=ours, **NARROW)
        keras.utils.set_random_seed(2)
        distiller = Distiller(student, teacher, parts)
        batch = toys.make_batch("text", teacher)
        found, metrics = distiller.loss_terms(batch, training=True)
        for x in (x for pair in (*found.values(), *metrics.values()) for x in pair):
            assert keras.backend.standardize_dtype(x.dtype) == "float32"
        return {name: total / count for name, (total, count) in toys.values(found).items()}

    wanted = losses("float32", "float32")
    for of_teacher in ("float32", "mixed_bfloat16"):
        assert losses("mixed_bfloat16", of_teacher) == pytest.approx(wanted, rel=0.05)


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations.numpy() == 3:
            raise KeyboardInterrupt  # in the middle of the second epoch


@pytest.mark.slow
def test_a_run_that_was_stopped_resumes_to_the_same_numbers(tokenizer, tmp_path):
    """With dropout. And a checkpoint holds nothing of the teacher."""
    teacher = toys.make_task("classes", tokenizer, dropout=0.2)
    texts = fox_texts(12)
    labels = [["a", "b", "c"][i % 3] for i in range(12)]

    def fit(**options):
        keras.utils.set_random_seed(2)
        student = toys.make_task("classes", tokenizer, seed=1, dropout=0.2, **NARROW)
        distiller = Distiller(student, teacher, [*TINYBERT, SoftTargets(weight=2.0), OwnLoss()])
        options = {"epochs": 2, "batch_size": 6, "learning_rate": 1e-3, "verbose": 0, **options}
        return distiller, lambda: distiller.fit(texts, labels, **options)

    whole, run = fit()
    wanted = run().history
    _ended, run = fit(model_dir=tmp_path, checkpoint_every=1, callbacks=[Stop()])
    with pytest.raises(KeyboardInterrupt):
        run()
    again, run = fit(model_dir=tmp_path, checkpoint_every=1)
    history = run().history
    assert history == wanted
    for found, one in zip(again.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(found, one)

    newest = max((tmp_path / "checkpoints").glob("*.safetensors"))
    saved = load_file(newest)
    groups = {name.split("/")[0] for name in saved}
    assert groups == {"weights", "optimizer", "seeds", "data_position"}
    weights = sum(x.size for name, x in saved.items() if name.startswith("weights/"))
    student = whole.student
    assert weights == student.count_params() + 9 * 16
    assert weights < teacher.count_params()
    names = {n.removeprefix("weights/") for n in saved if n.startswith("weights/")}
    assert {n.split("/")[0] for n in names} == {"encoder", "classifier", "projection"}
    assert "SoftTargets(weight=2.0, temperature=1.0" in whole.settings["distilled_by"][3]


def test_what_it_gives_is_the_students(tokenizer, teacher, tmp_path):
    student = kbert.student(teacher, 1)
    distiller = Distiller(student, teacher, [SoftTargets()])
    assert distiller.tokenizer is tokenizer
    assert distiller.encoder is student.encoder
    assert distiller.teacher is teacher
    assert distiller.student is student
    distiller.save_to_preset(tmp_path / "preset")
    loaded = kbert.tasks.TextClassifier.from_preset(tmp_path / "preset")
    wanted = get_arrays(student.encoder, "encoder")
    for name, array in get_arrays(loaded.encoder, "encoder").items():
        np.testing.assert_array_equal(array, wanted[name])
    assert distiller.predict(["the red fox"]) == student.predict(["the red fox"])
    path = tmp_path / "model.keras"
    path.write_bytes(b"what was here")
    with pytest.raises(NotImplementedError, match=r"save its student with.*Received"):
        distiller.save(path)
    assert path.read_bytes() == b"what was here"
    with pytest.raises(ValueError, match=r"export\(folder, precision=\"int8\"\).*for a Distiller"):
        distiller.quantize("int8")


def test_lora_is_the_students(tokenizer, teacher):
    distiller = Distiller(kbert.student(teacher, 1), teacher, [SoftTargets()])
    before = get_arrays(distiller.student.encoder, "encoder")
    assert distiller.enable_lora(2) is distiller
    distiller.fit(*toys.TABLES["classes"][2], epochs=1, batch_size=5, verbose=0)
    after = get_arrays(distiller.student.encoder, "encoder")
    moved = {name for name, x in after.items() if not np.array_equal(x, before.get(name))}
    assert moved
    assert all("adapter_lora" in name for name in moved)


def test_a_run_records_which_adapters_of_its_teachers_are_active(tokenizer):
    first, second = (toys.make_task("classes", tokenizer, seed=seed) for seed in (1, 2))
    student = kbert.student(first, 1)

    def settings(*teachers):
        return Distiller(student, teachers, [SoftTargets()]).settings

    assert "teacher_edits" not in settings(first, second)  # as in runs of older versions
    for name in ("a", "b"):
        adapters.add(second, "lora", name=name, rank=2)
    for teachers in [(second,), (first, second)]:
        adapters.activate(second, "b")
        before = settings(*teachers)
        adapters.activate(second, "a")
        after = settings(*teachers)
        assert before.pop("teacher_edits") != after.pop("teacher_edits")
        assert before == after


def test_decoders_with_soft_targets(tokenizer):
    """Both orders of a pair: two rows of the encoder an example."""

    def make(layers, seed, **options):
        sizes = {**toys.SIZES, **toys.NO_DROPOUT, "num_layers": layers}
        decoder = kbert.Decoder(
            kbert.DecoderConfig(vocabulary_size=tokenizer.vocabulary_size, **sizes)
        )
        randomise(decoder, sigma=0.3, seed=seed)
        encoder = kbert.models.DecoderEncoder.extend(decoder)
        options = {"both_orders": True, "auxiliary_lm_weight": 0.0, **options}
        return kbert.tasks.TextClassifier(encoder, tokenizer, ["a", "b"], **options)

    teacher, student = make(2, 0), make(1, 1)
    parts = [SoftTargets(), LastHiddenCosine(), HiddenStates(), OwnLoss()]
    distiller = Distiller(student, teacher, parts)
    batch = toys.make_batch("pairs", student)
    assert "swapped_token_ids" in batch
    losses, _ = map(toys.values, distiller.loss_terms(batch, training=True))
    logits = [to_numpy(task(batch)["classifier"]) for task in (student, teacher)]
    wanted = reference.soft_targets(*logits, batch["label_weights"])
    toys.assert_pairs(losses, {"soft_targets": wanted})
    assert losses["hidden_cosine"][1] == 2 * toys.counted(batch).sum()
    for other in (make(1, 1, both_orders=False), toys.make_task("classes", tokenizer)):
        with pytest.raises(ValueError, match=r"the same both_orders|the same special tokens"):
            Distiller(other, teacher, [SoftTargets()])
    with pytest.raises(ValueError, match=r"encoders of the BERT family. Received: a DecoderEnc"):
        Distiller(student, teacher, [AttentionScores()])


def test_text_is_trained_on_batches(tokenizer):
    """`fit` of a student that is pretrained takes a dataset; perplexity is a value of it."""
    teacher = toys.make_task("text", tokenizer)
    student = kbert.student(teacher, 2, num_segments=0, pooler_activation=None)
    distiller = Distiller(student, teacher, [SoftTargets(positions="all"), OwnLoss(weight=0.5)])
    distiller.compile(AdamW(1e-3), run_eagerly=True)
    data = toy.batches(tokenizer, batch_size=4).take(1)
    history = distiller.fit(data, verbose=0).history
    values = {"soft_targets", "weighted_mlm_loss", "mlm_loss", "perplexity", "agreement"}
    assert values < set(history)
    assert history["weighted_mlm_loss"][0] == pytest.approx(0.5 * history["mlm_loss"][0], rel=1e-5)
    with pytest.raises(TypeError, match=r"does not support `y`: a batch is one dict, which"):
        distiller.fit(data, [1, 2])


def test_pairs_that_are_encoded_apart_are_refused(tokenizer):
    student, teacher = (
        TextEmbedder(toys.make_task("classes", tokenizer, seed=seed).encoder, tokenizer)
        for seed in (0, 1)
    )
    pairs = [("the fox", "a dog"), ("the dog", "a fox")]
    for term in (SoftTargets(), LastHiddenCosine()):
        distiller = Distiller(student, teacher, [OwnLoss(), term])
        with pytest.raises(ValueError, match=rf"encoded apart.*: {type(term).__name__} for pairs"):
            distiller.fit(pairs, epochs=1, verbose=0)
    Distiller(student, teacher, [OwnLoss()]).fit(pairs, epochs=1, batch_size=2, verbose=0)


def test_heads_that_nobody_has(tokenizer, teacher):
    student = toys.make_task("classes", tokenizer, seed=1)
    distiller = Distiller(student, teacher, [SoftTargets(heads=["clasifier"]), OwnLoss()])
    with pytest.raises(ValueError, match=r"share: classifier. Received: \('clasifier',\)"):
        distiller.fit(["the fox"], ["a"], epochs=1, verbose=0)


def test_what_cannot_be_compared(tokenizer, teacher):
    def make(name="classes", tokenizer=tokenizer, **changes):
        return toys.make_task(name, tokenizer, seed=1, **changes)

    narrow, four = make(**NARROW), make(num_heads=4)
    other = make(tokenizer=kbert.WordPieceTokenizer(tokenizer.vocabulary[:-1]))
    soft = [SoftTargets()]
    thirds = AttentionRelations(relations=["query"], num_relation_heads=3)
    for student, parts, message in (
        (narrow, [], "requires a loss term. Received: none"),
        (teacher, soft, "must be two models. Received: the same one"),
        (make("pairs"), soft, "the same labels .*order.. Received: .*'b'\\] and .*'b', 'c'\\]"),
        (make("several"), soft, "the same multi_label.*Received: True and False"),
        (make("numbers"), soft, "tasks of the same class.*a TextClassifier for a TextRegr"),
        (narrow, [LastHiddenCosine()], "of the same width: .*hidden_size. Received: 8 and 16"),
        (narrow, [HiddenStates(layers=[1, 5])], "the teacher, from 1 to 4, or None. Received: 5"),
        (narrow, [AttentionScores(layers=[1])], "must have an entry for each layer"),
        (narrow, [AttentionRelations(teacher_layer=5)], "1 to 4 .*Received: teacher_layer=5"),
        (narrow, [thirds], "hidden widths of both .*num_relation_heads=3, hidden_size=8"),
        (four, [AttentionScores()], "head by head: .* in num_heads. Received: 4 and 2"),
        (four, [AttentionRelations()], "compared head by head: .* in num_heads. Received: 4 and 2"),
        (four, [AttentionRelations(relations=["value"])], "compared head by head: .*: 4 and 2"),
        (make(max_positions=48), soft, "sequences of up to 48 tokens, a teacher of 32"),
        (
            other,
            soft,
            r"same tokenizer. Received: a WordPieceT.* \d+ entries \(checksum \w{8}\) and",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            Distiller(student, teacher, parts)
    Distiller(four, teacher, [AttentionRelations(relations=["value"], num_relation_heads=8)])

    text = make("text alone")
    padded = make("text alone", vocabulary_size=tokenizer.vocabulary_size + 3)
    with pytest.raises(ValueError, match=r"the same vocabulary_size.* Received: \d+ and \d+"):
        Distiller(text, padded, soft)
    spans = kbert.tasks.Pretraining(
        text.encoder, tokenizer, next_sentence=False, span_boundary=True
    )
    with pytest.raises(ValueError, match=r"load it with span_boundary=False. Received: such a"):
        Distiller(make("text alone"), spans, soft)

    two = [HiddenStates(layers=[1, None]), HiddenStates(weight=2.0)]
    ambiguous, batch = Distiller(narrow, teacher, two), toys.make_batch("classes", teacher)
    with pytest.raises(ValueError, match=r"of different names. .*'hidden_states', the second Hidd"):
        ambiguous.loss_terms(batch, training=False)


def test_a_teacher_is_one_task(tokenizer):
    make = functools.partial(toys.make_task, "classes", tokenizer)
    student, teacher = make(), make()
    encoder = teacher.encoder
    multi = kbert.tasks.MultiTask({"one": teacher})
    for role, pair in (
        ("teacher", (student, multi)),
        ("teacher", (student, encoder)),
        ("student", (multi, teacher)),
    ):
        with pytest.raises(TypeError, match=rf"^The {role} must be .*multi.tasks\[name\]. Rec"):
            Distiller(*pair, [SoftTargets()])
