"""Memory to train, by formula: its parts exactly, and against the peak of real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kbert.catalog.families import family
from kbert.configs.encoder import EncoderConfig
from kbert.configs.reformer import ReformerConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.layers.chunked_attention import Threshold
from kbert.models import describe
from tests.harness import tiny_config

TRAINED = 5808 + 16 * 16 + 3 * 16 + 40 + 2 * 16 + 2  # of tiny_config, with both heads


def test_parts_of_a_small_model():
    found = describe(tiny_config()).training_memory(2, 10)
    assert found.weights == 4 * TRAINED
    assert found.moments == 2 * 4 * TRAINED
    assert found.gradients == 4 * (TRAINED + 40 * 16)
    assert found.logits == 3 * 4 * 2 * 3 * 40  # 15 % of 10 tokens and one more
    hidden, forwarded, scores = 2 * 10 * 16, 2 * 10 * 32, 2 * 4 * 10 * 10
    assert found.activations == 4 * (2 * (10 * hidden + 5 * forwarded + scores) + 4 * scores)
    assert found.total == sum(
        (found.weights, found.moments, found.gradients, found.logits, found.activations)
    )


def test_of_many_predictions_the_logits_of_one_chunk_count():
    def logits(rows):
        return describe(tiny_config(vocabulary_size=100_000)).training_memory(rows, 24).logits

    assert logits(51) == 3 * 4 * 255 * 100_000  # five predictions in a row
    # 515 tokens in three chunks, and the product that each adds to the gradient of the table.
    assert logits(103) == 4 * 100_000 * (3 * 172 + 16)
    # Labels and smoothing of an encoder-decoder: 600 targets.
    config = seq2seq(vocabulary_size=100_000, hidden_size=16)
    found = describe(config).training_memory(6, 10, 100, label_smoothing=0.1)
    assert found.logits == 4 * 100_000 * (9 * 200 + 16)


def test_what_changes_activations():
    def activations(precision="float32", **changes):
        config = tiny_config(intermediate_size=64, **changes)
        return describe(config).training_memory(2, 10, precision=precision).activations

    hidden, forwarded, scores = 2 * 10 * 16, 2 * 10 * 64, 2 * 4 * 10 * 10
    before = activations()
    assert activations(dropout=0.1) - before == 4 * 2 * 2 * hidden
    assert activations(attention_dropout=0.1) - before == 4 * 2 * 2 * scores
    assert activations(activation="relu") - before == -4 * 2 * 4 * forwarded
    assert activations(num_layer_groups=1) == before  # shared weights share no activations
    # GELU keeps float32 inside, and works in it.
    saved = 2 * 2 * (6 * hidden + forwarded - scores)
    assert before - activations("mixed_bfloat16") == saved


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_recomputed_layers_keep_their_inputs_and_one_of_them_all(precision):
    def activations(layers, recompute):
        found = describe(tiny_config(num_layers=layers, intermediate_size=64))
        return found.training_memory(2, 10, precision=precision, recompute=recompute).activations

    hidden = 2 * 10 * 16 * (4 if precision == "float32" else 2)
    assert activations(9, True) - activations(8, True) == hidden
    of_a_layer = activations(9, False) - activations(8, False)
    work = activations(8, False) - 8 * of_a_layer
    assert activations(8, True) == 8 * hidden + 1.5 * of_a_layer + work
    assert activations(1, True) == activations(1, False)  # no more than without
    parts = [describe("bert-tiny").training_memory(2, 10, recompute=x) for x in (False, True)]
    for name in ("weights", "gradients", "moments", "logits", "compiled"):
        assert getattr(parts[0], name) == getattr(parts[1], name)


def test_what_changes_weights():
    base = describe(tiny_config())
    mixed = base.training_memory(2, 10, precision="mixed_bfloat16")
    assert mixed.weights == 4 * TRAINED + 2 * (5808 - 40 * 16)
    assert base.training_memory(2, 10, optimizer_slots=0).moments == 0
    no_pooler = describe(tiny_config(pooler_activation=None)).training_memory(2, 10)
    assert no_pooler.weights == 4 * (TRAINED - 16 * 17 - 2 * 17)


def test_scores_in_chunks_are_not_kept(monkeypatch):
    config = tiny_config(intermediate_size=64, max_positions=2048)

    def activations():
        return describe(config).training_memory(1, 2048).activations

    chunked = activations()
    monkeypatch.setattr(Threshold, "tokens", None)
    scores, hidden = 4 * 2048**2, 2048 * 16  # 4 heads; each layer kept the scores once
    of_layers = 2 * (4 * scores - 4 * hidden - 4 * 4 * 2048)
    of_work = 4 * 4 * (scores - scores // 8) - (150 << 20)
    assert activations() - chunked == of_layers + of_work


def test_albert_saves_weights_and_not_activations():
    bert = describe(family("bert-base-uncased").replace(dropout=0.0, attention_dropout=0.0))
    albert = describe("albert-base-v2").training_memory(32, 128)
    assert albert.activations == bert.training_memory(32, 128).activations
    assert albert.weights < bert.training_memory(32, 128).weights / 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "float16"}, "one of float32, .*mixed_float16. Received: 'float16'"),
        ({"batch_size": 0}, "at least 1 .*Received: batch_size=0"),
        ({"optimizer_slots": -1}, "Received: .*optimizer_slots=-1"),
        ({"sequence_length": 513}, r"between 1 and 512 .*. Received: 513"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        describe("bert-tiny").training_memory(
            **{"batch_size": 8, "sequence_length": 128, **arguments}
        )


WIDE = {
    "vocabulary_size": 1000,
    "hidden_size": 256,
    "num_layers": 6,
    "num_heads": 4,
    "intermediate_size": 1024,
}
ALBERT = {"num_layer_groups": 1, "embedding_size": 64, "dropout": 0.0, "attention_dropout": 0.0}


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("changes", "batch_size", "sequence_length", "precision", "recompute"),
    [
        ({}, 32, 128, "float32", False),
        ({}, 8, 512, "float32", False),
        ({"max_positions": 2048}, 2, 2048, "float32", False),
        (ALBERT, 32, 128, "float32", False),
        ({"activation": "gelu", "vocabulary_size": 30000}, 32, 128, "float32", False),
        ({}, 64, 128, "mixed_bfloat16", False),
        ({}, 32, 128, "float32", True),
        ({}, 8, 512, "float32", True),
        (ALBERT, 32, 128, "float32", True),
        ({"num_layers": 12}, 8, 512, "float32", True),
        ({}, 64, 128, "mixed_bfloat16", True),
    ],
)
def test_the_estimate_is_close_to_the_measured_peak(
    changes, batch_size, sequence_length, precision, recompute
):
    """Within a fifth; where layers are computed again, 15 %."""
    config = EncoderConfig(**{**WIDE, **changes})
    compare(config, 0.15 if recompute else 0.2, batch_size, sequence_length, precision, recompute)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("changes", "batch_size", "sequence_length"),
    [({}, 32, 128), ({"num_layers": 12}, 8, 512), ({"num_hashes": 2}, 2, 2048)],
)
def test_the_estimate_of_reversible_layers(changes, batch_size, sequence_length):
    sizes = {**WIDE, "hidden_size": 512, "head_size": 64, "max_positions": 4096}
    config = ReformerConfig(**{**sizes, **changes})
    compare(config, 0.2, batch_size, sequence_length, "float32", False)


def seq2seq(**changes) -> Seq2SeqConfig:
    sizes = {**WIDE, "num_layers": 3, "max_positions": 512}
    return Seq2SeqConfig(**{**sizes, **changes})


def test_both_sides_and_all_logits_count():
    def parts(source, target, **changes):
        config = seq2seq(hidden_size=16, intermediate_size=32, activation="relu", **changes)
        return describe(config).training_memory(2, source, target)

    before = parts(10, 10, dropout=0.0, attention_dropout=0.0)
    table = 1000 * 16
    parameters = describe(seq2seq(hidden_size=16, intermediate_size=32)).parameters
    assert before.weights == 4 * parameters
    assert before.moments == 2 * 4 * parameters
    assert before.gradients == 4 * (parameters + 2 * table)  # source, target, output
    assert before.logits == 3 * 4 * 2 * 10 * 1000
    hidden, forwarded, scores = 2 * 10 * 16, 2 * 10 * 32, 2 * 4 * 10 * 10
    encoder = 4 * (10 * hidden + forwarded + scores)
    crossing = 4 * (7 * hidden + scores)
    work = 4 * 4 * scores
    assert before.activations == 3 * (2 * encoder + crossing) + work
    deeper = parts(10, 10, dropout=0.0, attention_dropout=0.0, num_decoder_layers=4)
    assert deeper.activations - before.activations == encoder + crossing
    longer = parts(10, 20, dropout=0.0, attention_dropout=0.0)
    assert longer.logits == 2 * before.logits
    assert longer.activations > before.activations
    untied = parts(10, 10, output="untied")
    assert untied.gradients == untied.weights + 4 * table  # the source's and the target's


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_length": 513}, "`target_length` must be between 1 and 512 .*Received: 513"),
        ({"source_length": 0}, "`source_length` must be between 1 and 512 .*Received: 0"),
        ({"precision": "float16"}, "one of float32, .*mixed_float16. Received: 'float16'"),
    ],
    ids=["target", "source", "precision"],
)
def test_errors_of_both_sides(arguments, message):
    with pytest.raises(ValueError, match=message):
        describe(seq2seq()).training_memory(**{"batch_size": 8, "source_length": 9, **arguments})


BART = {"activation": "gelu", "activation_dropout": 0.1, "embeddings": "normalised"}
T5 = {
    **{"activation": "gelu_tanh", "feed_forward": "gated", "activation_dropout": 0.1},
    **{"block": "pre_norm", "norm": "rms", "use_bias": False, "positions": "relative"},
    **{"output": "untied", "scale_scores": False, "scale_embeddings": False},
}


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("changes", "lengths", "precision", "recompute"),
    [
        ({}, (256, 64), "float32", False),
        ({}, (64, 256), "float32", False),
        ({"vocabulary_size": 20_000}, (128, 128), "float32", False),
        (BART, (128, 128), "float32", False),
        (T5, (128, 128), "float32", False),
        ({}, (256, 128), "mixed_bfloat16", False),
        ({"num_layers": 6}, (256, 128), "float32", True),
    ],
    ids=["source", "target", "logits", "bart", "t5", "bfloat16", "recompute"],
)
def test_the_estimate_of_both_sides(changes, lengths, precision, recompute):
    compare_steps(
        seq2seq(**changes),
        0.2,
        batch_size=32,
        source_length=lengths[0],
        target_length=lengths[1],
        precision=precision,
        recompute=recompute,
    )


def compare(config, rtol, batch_size, sequence_length, precision, recompute):
    """In a fresh process."""
    compare_steps(
        config,
        rtol,
        batch_size=batch_size,
        sequence_length=sequence_length,
        precision=precision,
        recompute=recompute,
    )


def compare_steps(config, rtol, **shape):
    """Compares an estimate with a fresh process that trains; `shape` are its arguments."""
    program = [sys.executable, str(Path(__file__).with_name("train_for_memory.py"))]
    done = subprocess.run(
        [*program, json.dumps({"kind": config.kind, "config": config.to_dict(), **shape})],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert not done.returncode, done.stderr
    measured = int(done.stdout.split()[-1])
    estimated = describe(config).training_memory(**shape).total
    print(f"estimated {estimated / 2**20:.0f} MiB, measured {measured / 2**20:.0f} MiB")
    assert estimated == pytest.approx(measured, rel=rtol)
