import contextlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.models import describe
from kbert.models.weights import get_arrays
from kbert.tasks import ReplacedTokenDetection, generator_config
from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import WarmupDecay
from kbert.training.run.checkpoints import Checkpoints
from tests.export import session
from tests.harness import randomise, to_numpy
from tests.tasks import toy


@pytest.fixture(scope="module")
def small(config):
    return config.replace(num_layers=1, pooler_activation=None, embedding_size=8)


def make(config, tokenizer, share=0.5, **settings):
    """A discriminator and a generator of half its width, with dropout off by default."""
    keras.utils.set_random_seed(1)
    dropout = settings.pop("dropout", 0.0)
    config = config.replace(dropout=dropout, attention_dropout=dropout)
    encoder = kbert.Encoder(config, dtype=settings.pop("dtype", None))
    generator = generator_config(config, share)
    return ReplacedTokenDetection(encoder, tokenizer, generator=generator, **settings)


@pytest.fixture
def task(small, tokenizer):
    return make(small, tokenizer)


def test_no_config_says_whose_tables_the_generator_reads(task, tmp_path):
    for use in (
        task.generator.get_config,
        lambda: task.generator.save_to_preset(tmp_path),
        lambda: task.generator.save(tmp_path / "generator.keras"),
    ):
        with pytest.raises(ValueError, match=r"cannot be restored .*save_generator.*'generator'"):
            use()
    assert not list(tmp_path.iterdir())


def batches(tokenizer, steps, batch_size=8, seed=0):
    """Batches with the position that a real data set would give them."""
    data = toy.batches(tokenizer, batch_size=batch_size, next_sentence=False, seed=seed)
    found = []
    for step, batch in enumerate(data.take(steps)):
        batch = {name: value.numpy() for name, value in batch.items()}
        batch["position"] = np.tile(np.array([[0, seed, step]], "int32"), (batch_size, 1))
        found.append(batch)
    return found


def dataset(found):
    return tf.data.Dataset.from_tensor_slices(
        {name: np.stack([batch[name] for batch in found]) for name in found[0]}
    )


def original(batch):
    """The text before it was masked."""
    text = batch["token_ids"].copy()
    rows, slots = np.nonzero(batch["mask_weights"])
    text[rows, batch["mask_positions"][rows, slots]] = batch["mask_ids"][rows, slots]
    return text


def test_the_generator_s_tokens_take_the_place_of_the_masks(task, tokenizer):
    (batch,) = batches(tokenizer, 1, batch_size=32)
    out = task(batch)
    token_ids, replaced = (keras.ops.convert_to_numpy(out[n]) for n in ("token_ids", "replaced"))
    text = original(batch)
    assert (batch["token_ids"] == tokenizer.mask_id).sum() == 32
    assert not (token_ids == tokenizer.mask_id).sum() > 2  # an untrained generator may draw it
    np.testing.assert_array_equal(replaced, token_ids != text)
    was_masked = np.zeros_like(text, bool)
    rows, slots = np.nonzero(batch["mask_weights"])
    was_masked[rows, batch["mask_positions"][rows, slots]] = True
    assert replaced.sum() > 16
    assert not (replaced * ~was_masked).any()


def test_a_right_guess_counts_as_original(task, tokenizer):
    (batch,) = batches(tokenizer, 1)
    bias = np.zeros(tokenizer.vocabulary_size, "float32")
    bias[tokenizer.token_to_id("fox")] = 1e4  # it always draws this one
    task.masked_lm.bias.assign(bias)
    out = task(batch)
    right = batch["mask_ids"][:, 0] == tokenizer.token_to_id("fox")
    assert 0 < right.sum() < 8
    replaced = keras.ops.convert_to_numpy(out["replaced"]).sum(1)
    np.testing.assert_array_equal(replaced, ~right)
    values = task.loss_terms(batch, training=False)[1]
    share = float(values["replaced_share"][0] / values["replaced_share"][1])
    assert share == pytest.approx((~right).sum() / batch["padding_mask"].sum())


def test_a_position_that_is_listed_twice_is_replaced_once(task, tokenizer):
    (batch,) = batches(tokenizer, 1)
    for name in ("mask_positions", "mask_ids", "mask_weights"):
        batch[name][:, 1] = batch[name][:, 0]
    out = task(batch)
    token_ids, replaced = (keras.ops.convert_to_numpy(out[n]) for n in ("token_ids", "replaced"))
    np.testing.assert_array_equal(replaced, token_ids != original(batch))


def test_loss_terms_by_hand(task, tokenizer):
    (batch,) = batches(tokenizer, 1)
    batch["mask_weights"][5] = 0
    batch["padding_mask"][6:] = 0
    losses, metrics = task.loss_terms(batch, training=False)
    out = {name: to_numpy(value) for name, value in task(batch).items()}

    logits, labels, real = out["replaced_logits"], out["replaced"], batch["padding_mask"]
    each = np.logaddexp(0, logits) - logits * labels
    assert float(metrics["rtd_loss"][0]) == pytest.approx((each * real).sum(), rel=1e-5)
    assert float(metrics["rtd_loss"][1]) == real.sum() == 6 * 9
    weighted = losses["weighted_rtd_loss"]
    assert float(weighted[0]) == pytest.approx(50 * (each * real).sum(), rel=1e-5)
    assert float(weighted[1]) == real.sum()
    x = out["masked_lm"] - np.log(np.exp(out["masked_lm"]).sum(-1, keepdims=True))
    each = -np.take_along_axis(x, batch["mask_ids"][..., None], -1)[..., 0]
    expected = (each * batch["mask_weights"]).sum()
    assert float(losses["mlm_loss"][0]) == pytest.approx(expected, rel=1e-5)
    assert float(losses["mlm_loss"][1]) == batch["mask_weights"].sum()

    yes = (logits > 0) * real
    pairs = {"precision": yes.sum(), "recall": (labels * real).sum()}
    for name, count in pairs.items():
        assert float(metrics[f"rtd_{name}"][0]) == (yes * labels).sum()
        assert float(metrics[f"rtd_{name}"][1]) == count
    assert float(metrics["rtd_accuracy"][0]) == ((logits > 0) == labels)[real == 1].sum()
    assert float(metrics["replaced_share"][0]) == (labels * real).sum()


def test_terms_add_up_over_rows(task, tokenizer):
    (batch,) = batches(tokenizer, 1)
    whole = task.loss_terms(batch, training=False)
    parts = [
        task.loss_terms({k: v[rows] for k, v in batch.items()}, training=False)
        for rows in (slice(0, 3), slice(3, 8))
    ]
    for group in (0, 1):
        for name, pair in whole[group].items():
            for k in (0, 1):
                total = sum(float(part[group][name][k]) for part in parts)
                assert float(pair[k]) == pytest.approx(total, rel=1e-5), name


def test_the_tables_are_the_same_memory(task, small, tokenizer):
    generator = generator_config(small.replace(dropout=0.0), 0.5)
    tables = describe(small).parameters - describe(small.replace(vocabulary_size=1)).parameters
    rows = tokenizer.vocabulary_size + small.max_positions + small.num_segments
    shared = rows * 8 + 2 * 8
    assert tables == (tokenizer.vocabulary_size - 1) * 8
    heads = task.masked_lm.count_params() + task.detection_head.count_params()
    alone = describe(small).parameters + describe(generator).parameters + heads
    assert task.count_params() == alone - shared
    ids = {id(weight) for weight in task.weights}
    assert len(ids) == len(task.weights)

    batch = batches(tokenizer, 1)[0]
    before = to_numpy(task(batch)["masked_lm"])
    task.encoder.token_embedding.assign(to_numpy(task.encoder.token_embedding.value) * 2)
    assert np.abs(to_numpy(task(batch)["masked_lm"]) - before).max() > 0.01


@pytest.mark.tensorflow
def test_the_discriminator_s_loss_does_not_move_the_generator(task, tokenizer):
    (batch,) = batches(tokenizer, 1)
    own = [*task.generator.trainable_variables, *task.masked_lm.trainable_variables]
    shared = task.encoder.token_embedding
    with tf.GradientTape(persistent=True) as tape:
        losses, _ = task.loss_terms(batch, training=True)
        mlm, rtd = losses["mlm_loss"][0], losses["weighted_rtd_loss"][0]
    values = [v.value for v in own]
    assert all(g is None for g in tape.gradient(rtd, values))
    assert all(g is not None for g in tape.gradient(mlm, values))
    for loss in (mlm, rtd):  # both move what they share
        assert np.abs(tf.convert_to_tensor(tape.gradient(loss, shared.value))).max() > 0
    detector = [v.value for v in task.detection_head.trainable_variables]
    assert all(g is None for g in tape.gradient(mlm, detector))


SHARINGS = ["all", "gradient_disentangled", "separate"]


@pytest.mark.parametrize("sharing", SHARINGS[1:])
def test_both_begin_with_the_discriminator_s_tables(small, tokenizer, sharing):
    keras.utils.set_random_seed(1)
    encoder = kbert.Encoder(small)
    batch = {k: x for k, x in batches(tokenizer, 1)[0].items() if k in encoder.INPUTS}
    before, tables = to_numpy(encoder(batch)["sequence"]), get_arrays(encoder.embeddings, "tables")
    generator = generator_config(small, 1.0)
    task = ReplacedTokenDetection(
        encoder, tokenizer, generator=generator, embedding_sharing=sharing
    )
    np.testing.assert_array_equal(to_numpy(encoder(batch)["sequence"]), before)
    for embeddings in (encoder.embeddings, task.generator.embeddings):
        found = get_arrays(embeddings, "tables")
        for name in ("token", "position", "segment", "norm/gamma"):
            np.testing.assert_array_equal(found[f"tables/{name}"], tables[f"tables/{name}"], name)
    assert encoder.embeddings.token.path != task.generator.embeddings.token.path
    assert task.count_params() == (
        describe(small).parameters
        + describe(generator).parameters
        + task.masked_lm.count_params()
        + task.detection_head.count_params()
    )


@pytest.mark.tensorflow
def test_disentangled_tables_move_as_the_paper_says(small, tokenizer):
    """The generator's by its own loss, the discriminator's by that step and by its own loss."""
    task = make(small, tokenizer, share=1.0, embedding_sharing="gradient_disentangled")
    (batch,) = batches(tokenizer, 1)
    of_generator, of_detector = task.generator.embeddings, task.encoder.embeddings
    with tf.GradientTape(persistent=True) as tape:
        losses, _ = task.loss_terms(batch, training=True)
        mlm, rtd = (x / y for x, y in losses.values())
    steps, before = {}, {}
    for name in ("token", "position"):
        own = [getattr(x, name).value for x in (of_generator, of_detector)]
        (by_mlm, none), (nothing, by_rtd) = (tape.gradient(x, own) for x in (mlm, rtd))
        assert none is None
        assert nothing is None
        steps[name] = [0.1 * np.asarray(tf.convert_to_tensor(g)) for g in (by_mlm, by_rtd)]
        arrays = own[0], get_arrays(of_detector, "t")[f"t/{name}"]
        before[name] = [np.array(to_numpy(x)) for x in arrays]
    task.compile(keras.optimizers.SGD(0.1), clip_norm=None)
    task.train_on_batch(batch)
    for name, step in steps.items():
        found = to_numpy(getattr(of_generator, name).value)
        np.testing.assert_allclose(found, before[name][0] - step[0], atol=1e-6)
        together = before[name][1] - step[0] - step[1]
        np.testing.assert_allclose(get_arrays(of_detector, "t")[f"t/{name}"], together, atol=1e-6)
        assert min(np.abs(x).max() for x in step) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("sharing", SHARINGS[1:])
def test_presets_of_both_continue(small, tokenizer, tmp_path, sharing):
    found = batches(tokenizer, 4)
    task = make(small, tokenizer, share=1.0, embedding_sharing=sharing)
    train(task, found[:2])
    task.save_to_preset(tmp_path / "discriminator")
    task.save_generator(tmp_path / "generator")
    alone = kbert.Encoder.from_preset(tmp_path / "discriminator")
    batch = {k: x for k, x in found[2].items() if k in alone.INPUTS}
    expected = to_numpy(task.encoder(batch)["sequence"])
    np.testing.assert_allclose(to_numpy(alone(batch)["sequence"]), expected, atol=1e-6)
    if sharing != "separate":
        assert np.abs(to_numpy(alone.token_embedding - task.encoder.embeddings.token)).max() > 0.01

    again = ReplacedTokenDetection.from_preset(
        tmp_path / "discriminator", generator=tmp_path / "generator"
    )
    assert again.embedding_sharing == sharing
    for mine, theirs in zip(again.weights, task.weights, strict=True):
        np.testing.assert_allclose(to_numpy(mine), to_numpy(theirs), atol=1e-7, err_msg=mine.path)


def test_a_sum_of_tables_is_no_table(small, tokenizer):
    task = make(small, tokenizer, embedding_sharing="gradient_disentangled")
    for ask in (lambda: task.encoder.token_embedding, task.encoder.get_config):
        with pytest.raises(ValueError, match=r"sums of the generator's and its own.*'encoder'"):
            ask()
    with pytest.raises(ValueError, match=r"`embedding_sharing` must be one of all.*'half'"):
        make(small, tokenizer, embedding_sharing="half")


def train(task, found, **settings):
    task.compile(AdamW(1e-2), **settings)
    task.fit(dataset(found), verbose=0)
    return [to_numpy(v.value) for v in task.trainable_variables]


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("sharing", SHARINGS[:2])
@pytest.mark.parametrize("kind", ["replicas", "micro"])
def test_one_update_is_the_same_on_two_replicas_and_in_micro_batches(
    small, tokenizer, mirrored, kind, sharing
):
    found, chosen = batches(tokenizer, 3), {"embedding_sharing": sharing}
    expected = train(make(small, tokenizer, **chosen), found)
    with mirrored.scope() if kind == "replicas" else contextlib.nullcontext():
        parts = 2 if kind == "micro" else 1
        other = train(make(small, tokenizer, **chosen), found, micro_batches=parts)
    for a, b in zip(other, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sharing", [pytest.param(SHARINGS[0], marks=pytest.mark.slow), SHARINGS[1]]
)
def test_a_run_resumes_exactly(small, tokenizer, tmp_path, sharing):
    """Weights, moments, dropout: the generator's draws need nothing saved."""
    found = batches(tokenizer, 4)

    def losses(task, some):
        return [task.fit(dataset([b]), verbose=0).history["loss"][0] for b in some]

    whole = make(small, tokenizer, dropout=0.2, embedding_sharing=sharing)
    whole.compile(AdamW(1e-2))
    before = losses(whole, found[:2])
    Checkpoints(tmp_path).save(whole, 2)
    after = losses(whole, found[2:])
    again = make(small, tokenizer, dropout=0.2, embedding_sharing=sharing)
    again.compile(AdamW(1e-2))
    again.prepare(dataset(found).element_spec)
    Checkpoints(tmp_path).restore(again, 2)
    assert losses(again, found[2:]) == after
    assert len({*before, *after}) == 4


def test_evaluation_says_the_same_twice(task, tokenizer):
    task.compile(AdamW(1e-2))
    data = dataset(batches(tokenizer, 3))
    values = [task.evaluate(data, verbose=0, return_dict=True) for _ in range(2)]
    assert values[0] == values[1]
    assert set(values[0]) == {
        *("loss", "mlm_loss", "weighted_rtd_loss", "mlm_accuracy", "rtd_loss"),
        *("rtd_accuracy", "rtd_precision", "rtd_recall", "replaced_share"),
    }


@pytest.mark.slow
def test_it_learns_to_tell_what_does_not_fit(config, tokenizer):
    wide = config.replace(
        hidden_size=64,
        num_heads=4,
        intermediate_size=128,
        pooler_activation=None,
    )
    task = make(wide, tokenizer, share=0.25)
    # A generator that draws any token, whatever its tables learn: a good one leaves nothing to
    # tell.
    task.masked_lm.norm.gamma.assign(keras.ops.zeros_like(task.masked_lm.norm.gamma))
    for part in (task.generator, task.masked_lm):
        part.trainable = False
    steps = 160
    task.compile(AdamW(WarmupDecay(2e-3, 3 * steps, 20)))
    task.fit(dataset(batches(tokenizer, steps, batch_size=32)), verbose=0)
    held_out = dataset(batches(tokenizer, 5, batch_size=32, seed=9))
    values = task.evaluate(held_out, verbose=0, return_dict=True)
    assert 0.1 < values["replaced_share"] < 0.112  # one of nine tokens, but for lucky draws
    # Some draws fit as well as what they replace, so not all can be found.
    assert values["rtd_accuracy"] > 0.96
    assert values["rtd_precision"] > 0.85
    assert values["rtd_recall"] > 0.75
    right, wrong = task.predict(["the red pen", "the red x"])
    assert right["probabilities"][2] < 0.5 < wrong["probabilities"][2]


def test_predict_equals_the_model_on_one_text(task, tokenizer):
    texts = ["the red fox", "", "jumps " + "over the dog " * 30, b"it is day"]
    answers = task.predict(texts, batch_size=2)
    for text, answer in zip(texts, answers, strict=True):
        ids = tokenizer.encode([text]).to_list()[0][:38]
        row = np.array([[tokenizer.cls_id, *ids, tokenizer.sep_id]])
        logits = to_numpy(task.detection_head(task.encoder({"token_ids": row})["sequence"]))
        expected = 1 / (1 + np.exp(-logits[0, 1:-1]))
        assert answer["tokens"] == [tokenizer.vocabulary[i] for i in ids]
        np.testing.assert_allclose(answer["probabilities"], expected, rtol=1e-4)
    assert task.predict([]) == []
    with pytest.raises(ValueError, match="Received: batch_size=0"):
        task.predict("a", batch_size=0)


def test_rows_that_end_in_cls_are_read_from_their_first_token(small, tokenizer):
    pooled = {"pooler_activation": "tanh", "pooling": "last", "num_segments": 0}
    last = ReplacedTokenDetection(kbert.Encoder(small.replace(**pooled)), tokenizer)
    randomise(last)
    text = "the red pen"
    (answer,) = last.predict([text])
    assert answer["tokens"] == ["the", "red", "pen"]
    ids = tokenizer.encode([text]).to_list()[0]
    row = np.array([[*ids, tokenizer.sep_id, tokenizer.cls_id]], "int32")
    logits = last.detection_head(last.encode({"token_ids": row})["sequence"])
    expected = 1 / (1 + np.exp(-to_numpy(logits)[0, :3]))
    np.testing.assert_allclose(answer["probabilities"], expected, rtol=1e-5)
    served = last.signatures()["detect_replaced"].function
    found = served(tf.constant([text]))
    assert found["tokens"].numpy()[0, :3].tolist() == [b"the", b"red", b"pen"]
    assert not any(found["tokens"].numpy()[0, 3:])
    np.testing.assert_allclose(found["probabilities"].numpy()[0, :3], expected, rtol=1e-5)


def test_the_preset_holds_the_discriminator(task, small, tokenizer, tmp_path):
    task.save_to_preset(tmp_path / "discriminator")
    task.save_generator(tmp_path / "generator")
    text = ["the red fox jumps"]
    again = ReplacedTokenDetection.from_preset(tmp_path / "discriminator")
    assert again.generator is None
    assert again.predict(text) == task.predict(text)
    encoder = kbert.Encoder.from_preset(tmp_path / "discriminator")
    assert encoder.count_params() == describe(small).parameters

    alone = kbert.tasks.Pretraining.from_preset(tmp_path / "generator")
    (batch,) = batches(tokenizer, 1)
    np.testing.assert_allclose(
        to_numpy(alone(batch)["masked_lm"]), to_numpy(task(batch)["masked_lm"]), atol=1e-5
    )
    both = ReplacedTokenDetection.from_preset(
        tmp_path / "discriminator", generator=tmp_path / "generator"
    )
    for a, b in zip(both.weights, task.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(a.value), to_numpy(b.value))


def test_keys_are_ignored_in_both_folders(small, tokenizer, tmp_path):
    task = make(small.replace(activation="gelu"), tokenizer)
    task.save_to_preset(tmp_path / "discriminator", "huggingface")
    task.save_generator(tmp_path / "own")
    alone = kbert.tasks.Pretraining.from_preset(tmp_path / "own")
    alone.save_to_preset(tmp_path / "generator", "huggingface", architecture="electra")
    for folder in ("discriminator", "generator"):
        path = tmp_path / folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "house_style": 1}))
    folders = {"path": tmp_path / "discriminator", "generator": tmp_path / "generator"}
    ReplacedTokenDetection.from_preset(**folders, ignore=["house_style"])
    with pytest.raises(ValueError, match=r"unknown house_style in .*generator"):
        ReplacedTokenDetection.from_preset(**folders)


def test_a_generator_of_another_run_is_refused(task, small, tokenizer, tmp_path):
    task.save_to_preset(tmp_path / "discriminator")
    other = make(small, tokenizer)
    other.encoder.token_embedding.assign(to_numpy(other.encoder.token_embedding.value) + 1)
    other.save_generator(tmp_path / "generator")
    with pytest.raises(ValueError, match=r"the same encoder/embeddings/token. Received: other"):
        ReplacedTokenDetection.from_preset(
            tmp_path / "discriminator", generator=tmp_path / "generator"
        )


@pytest.mark.tensorflow
def test_the_export_takes_text(task, tmp_path):
    texts = ["the red fox", "", "a dog " * 40]
    path = task.export(tmp_path)
    served, encoded = session.ask(
        path, ("detect_replaced", {"text": texts}), ("encode", {"text": texts})
    )
    for row, answer in enumerate(task.predict(texts)):
        count = len(answer["tokens"])
        found = [token.decode() for token in served["tokens"][row]]
        assert found[:count] == answer["tokens"]
        assert not any(found[count:])
        np.testing.assert_allclose(
            served["probabilities"][row, :count], answer["probabilities"], atol=1e-5
        )
        assert not served["probabilities"][row, count:].any()
    assert encoded["sequence"].shape[-1] == 16


def test_it_trains_in_bfloat16(small, tokenizer):
    task = make(small, tokenizer, dtype="mixed_bfloat16")
    task.compile(AdamW(1e-3))
    history = task.fit(dataset(batches(tokenizer, 2)), verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_what_does_not_fit_is_refused(small, tokenizer):
    encoder = kbert.Encoder(small)
    alone = ReplacedTokenDetection(encoder, tokenizer)
    (batch,) = batches(tokenizer, 1)
    with pytest.raises(
        ValueError, match=r"needs a generator.*Received: a task with generator=None"
    ):
        alone.loss_terms(batch, training=True)
    with pytest.raises(ValueError, match="no generator to save"):
        alone.save_generator("nowhere")
    task = make(small, tokenizer)
    del batch["position"]
    with pytest.raises(ValueError, match=r"must contain `position`.*Received: mask_ids, "):
        task.loss_terms(batch, training=True)
    other = generator_config(small.replace(max_positions=20), 0.5)
    with pytest.raises(ValueError, match=r"agree in .*Received: max_positions=20 and 40"):
        ReplacedTokenDetection(encoder, tokenizer, generator=other)


def test_sizes_of_generators():
    """configure_pretraining.py and run_pretraining.py of google-research/electra."""
    for size, share in (("base", 1 / 3), ("large", 0.25)):
        config = kbert.family(f"google/electra-{size}-discriminator")
        assert generator_config(config, share) == kbert.family(f"google/electra-{size}-generator")
    for share in (0.0, 1.01):
        with pytest.raises(ValueError, match=f"share must be above.*Received: {share} of .*=1024"):
            generator_config(config, share)
    for size, layers in (("xsmall", 6), ("base", 6), ("large", 12)):  # rtd_*.json
        config = kbert.family(f"microsoft/deberta-v3-{size}")
        assert generator_config(config, 1.0, 0.5) == config.replace(num_layers=layers)
    for depth in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"depth must be above 0.*Received: {depth} of .*=24"):
            generator_config(config, 1.0, depth)


@pytest.mark.slow
def test_the_losses_are_those_of_transformers(small, tokenizer, tmp_path):
    """Both halves of a checkpoint of theirs, with the tables they share, on one batch."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    values = {"vocab_size": tokenizer.vocabulary_size, "embedding_size": 8, "num_hidden_layers": 2}
    values |= {"max_position_embeddings": 40, "initializer_range": 0.15}
    wide = transformers.ElectraConfig(
        **values, hidden_size=16, num_attention_heads=2, intermediate_size=32
    )
    narrow = transformers.ElectraConfig(
        **values, hidden_size=8, num_attention_heads=1, intermediate_size=32
    )
    discriminator = transformers.ElectraForPreTraining(wide).eval()
    generator = transformers.ElectraForMaskedLM(narrow).eval()
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    for name, model in (("discriminator", discriminator), ("generator", generator)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save(tmp_path / name)
    task = ReplacedTokenDetection.from_preset(
        tmp_path / "discriminator", generator=tmp_path / "generator"
    )
    (batch,) = batches(tokenizer, 1)
    losses, metrics = task.loss_terms(batch, training=False)
    out = task(batch)

    def tensors(ids):
        names = {"attention_mask": "padding_mask", "token_type_ids": "segment_ids"}
        inputs = {there: torch.tensor(batch[here]).long() for there, here in names.items()}
        return inputs | {"input_ids": torch.tensor(np.asarray(ids)).long()}

    rows, slots = np.nonzero(batch["mask_weights"])
    labels = np.full(batch["token_ids"].shape, -100)
    labels[rows, batch["mask_positions"][rows, slots]] = batch["mask_ids"][rows, slots]
    with torch.no_grad():
        filled = generator(**tensors(batch["token_ids"]), labels=torch.tensor(labels))
        told = discriminator(
            **tensors(out["token_ids"]), labels=torch.tensor(np.asarray(out["replaced"])).long()
        )
    ours = losses["mlm_loss"][0] / losses["mlm_loss"][1]
    assert float(ours) == pytest.approx(filled.loss.item(), rel=1e-4)
    ours = metrics["rtd_loss"][0] / metrics["rtd_loss"][1]
    assert float(ours) == pytest.approx(told.loss.item(), rel=1e-4)
    real = batch["padding_mask"] == 1
    np.testing.assert_allclose(
        to_numpy(out["replaced_logits"])[real], told.logits.numpy()[real], atol=1e-4
    )
