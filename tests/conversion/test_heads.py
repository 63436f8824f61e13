"""Heads are converted whole or refused."""

import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.preset import write_folder as write_preset
from kbert.conversion import convert
from kbert.conversion.heads import HEADS, check_heads
from kbert.heads import DiscriminatorHead, MaskedLMHead, SpanBoundaryHead, TokenLogits
from kbert.models import Encoder
from kbert.models.weights import get_arrays
from tests.harness import tiny_config

WIDTHS = {"sentence": 2, "span": 2, "choice": 1, "classifier": 5, "tokens": 3}


@pytest.fixture(scope="module")
def encoder():
    return Encoder(tiny_config())


@pytest.fixture(scope="module")
def heads(encoder):
    """Every head that there is, by the first part of its weights' names."""
    config, table = encoder.config, encoder.token_embedding
    layers = {
        "masked_lm": MaskedLMHead(config, table),
        "permutation_lm": TokenLogits(config, table),
        "span_boundary": SpanBoundaryHead(config, table),
        "discriminator": DiscriminatorHead(config),
    }
    arrays = {name: get_arrays(layer, name) for name, layer in layers.items()}
    for name, width in WIDTHS.items():
        kernel, bias = np.ones((16, width), "float32"), np.ones(width, "float32")
        arrays[name] = {f"{name}/dense/kernel": kernel, f"{name}/dense/bias": bias}
    return arrays


def test_whole_heads_pass(encoder, heads):
    assert heads.keys() == set(HEADS)
    check_heads(encoder, {k: v for own in heads.values() for k, v in own.items()}, "memory")


@pytest.mark.parametrize("head", HEADS)
def test_a_head_that_no_task_could_load(encoder, heads, head):
    own = heads[head]
    first, *rest = own
    without = ({name: own[name] for name in rest}, f"Received: memory\n  - missing {first}")
    for changed, message in (
        *([without] if rest else []),  # of one weight nothing would be left
        ({**own, first: own[first][1:]}, f"! shape of {first}: expected"),
        ({**own, first: own[first] * np.nan}, f"! {first} holds NaN"),
        ({**own, f"{head}/extra": np.ones(2)}, rf"\+ unexpected {head}/extra"),
        ({**own, first: own[first].astype("int32")}, r"Weights must be floating.*int32. in memory"),
    ):
        with pytest.raises(ValueError, match=message):
            check_heads(encoder, changed, "memory")


def test_nothing_is_written_of_a_damaged_head(tmp_path, encoder, heads):
    arrays = {**get_arrays(encoder, "encoder"), **heads["masked_lm"]}
    arrays["masked_lm/bias"] = arrays["masked_lm/bias"][:5]
    write_preset(tmp_path / "preset", encoder.config, arrays)
    assert read_checkpoint(tmp_path / "preset").arrays.keys() == arrays.keys()
    with pytest.raises(ValueError, match=r"shape of masked_lm/bias: expected .40,., is .5,."):
        convert(tmp_path / "preset", tmp_path / "there")
    assert not (tmp_path / "there").exists()
