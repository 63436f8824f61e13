"""Runs that train an adapter: `--adapter` of the programs."""

import numpy as np
import pytest

import kbert
from kbert import experiments
from kbert.edit import adapters
from tests.edit.adapters.conftest import WORDS, make_encoder, reviews
from tests.harness import assert_close

pytestmark = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preset")
    tokenizer = kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
    make_encoder(tokenizer, pooler_activation=None).save_to_preset(folder)
    tokenizer.save(folder)
    return folder


def data(count, seed=0):
    texts, labels = reviews(count, seed)
    return {"text": texts, "label": labels}


def test_a_run_keeps_its_adapter_beside_the_model(preset, tmp_path):
    experiment = experiments.Experiment("classify", preset=preset, train=data(64), dev=data(24, 1))
    options = {"epochs": 1, "verbose": 0}
    result = experiments.run(experiment, tmp_path / "run", adapter="lora:rank=2", **options)
    assert result.settings["learning_rate"] == adapters.Lora.learning_rate
    texts = data(6, 2)["text"]
    whole = kbert.tasks.Task.from_preset(tmp_path / "run/preset")
    alone = adapters.load_task(preset, tmp_path / "run/adapter")
    found, expected = (
        np.array([list(x["probabilities"].values()) for x in task.predict(texts)])
        for task in (alone, whole)
    )
    assert_close(found, expected, 1e-5)
    # The preset has no pooler: the new one is trained, as a whole.
    assert alone.encoder.variants.added["task"].pooler
    with pytest.raises(ValueError, match="adapter"):
        experiments.run(experiment, tmp_path / "run", adapter="lora:rank=3", **options)
    own = experiment.settings(adapter="houlsby", learning_rate=0.5)
    assert own.learning_rate == 0.5
    assert experiment.settings().learning_rate == 5e-5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loro", "An adapter must be one of .*'loro'"),
        ("lora:rank", "must be name=value, such as .*Received: 'rank' in 'lora:rank'"),
        ("lora:rank=0", "`rank` must be a whole number of at least 1. Received: 0"),
        ("lora:ranks=2", "ranks.*Received: 'lora:ranks=2'"),
        ("houlsby:activation=gelo", "gelo"),
    ],
)
def test_what_is_no_adapter_is_told_before_the_run(preset, text, message):
    experiment = experiments.Experiment("classify", preset=preset, train=data(64), dev=data(24, 1))
    with pytest.raises(ValueError, match=message):
        experiment.settings(adapter=text)
