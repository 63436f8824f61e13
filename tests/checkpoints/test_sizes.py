import json

import numpy as np
import pytest

from kbert.checkpoints.preset import write_folder as write_preset
from kbert.checkpoints.sizes import check_size, fewest_numbers
from kbert.models import Encoder, describe
from tests.harness import tiny_config


@pytest.mark.parametrize(
    "changes",
    [{}, {"embedding_size": 8}, {"num_layer_groups": 1}, {"num_segments": 0}],
)
def test_no_encoder_holds_fewer(changes):
    config = tiny_config(pooler_activation=None, **changes)
    held = describe(config).held_parameters
    assert 0.8 * held < fewest_numbers(config) < held


def test_a_part_of_a_model_is_no_damage():
    bert = tiny_config(vocabulary_size=30522, hidden_size=1024, num_layers=24, num_heads=16)
    check_size(bert, 30522 * 1024, "its token table")
    with pytest.raises(ValueError, match=r"at most 20 times as large.*Received: .* 9 in the wei"):
        check_size(bert, 9, "a file")


@pytest.mark.parametrize("format_", ["kbert", "huggingface"])
@pytest.mark.parametrize("size", ["vocabulary", "hidden"])
def test_a_config_of_a_model_that_fills_the_memory(tmp_path, format_, size):
    Encoder(tiny_config()).save_to_preset(tmp_path, format=format_)
    path = tmp_path / ("kbert.json" if format_ == "kbert" else "config.json")
    key = {"vocabulary": "vocabulary_size", "hidden": "hidden_size"}[size]
    key = key if format_ == "kbert" else key.replace("vocabulary", "vocab")
    content = json.loads(path.read_text())
    (content["encoder"] if format_ == "kbert" else content)[key] = 2**40
    path.write_text(json.dumps(content))
    for strict in (True, False):
        with pytest.raises(ValueError, match=r"is probably damaged. Received: .*numbers by the c"):
            Encoder.from_preset(tmp_path, strict=strict)


def test_a_preset_without_weights(tmp_path):
    write_preset(tmp_path, tiny_config(), {"encoder/other": np.zeros(1, "float32")})
    with pytest.raises(ValueError, match="- missing encoder/embeddings/token"):
        Encoder.from_preset(tmp_path)
