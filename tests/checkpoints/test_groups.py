"""Groups of ALBERT's layers: as in the library that wrote the file, or refused."""

import re

import pytest

from kbert.checkpoints.google import checkpoint as google
from kbert.checkpoints.huggingface import config as huggingface
from kbert.checkpoints.huggingface.architectures import find
from kbert.models import Encoder

PAIRS = [(layers, groups) for layers in range(1, 49) for groups in range(1, layers + 1)]
CONTENT = {
    "vocab_size": 5,
    "hidden_size": 2,
    "num_attention_heads": 1,
    "intermediate_size": 2,
    "max_position_embeddings": 3,
    "type_vocab_size": 2,
    "embedding_size": 2,
    "hidden_act": "gelu",
    "inner_group_num": 1,
}
# The formulas of the two libraries: modeling.py of google-research/albert, and
# modeling_albert.py of transformers.
FORMULAS = {
    "Google": lambda layer, layers, groups: int(layer / layers * groups),
    "Hugging Face": lambda layer, layers, groups: int(layer / (layers / groups)),
}


def read(library, layers, groups):
    content = {**CONTENT, "num_hidden_layers": layers, "num_hidden_groups": groups}
    if library == "Google":
        return google.read_config(google._ALBERT, content, "there")
    return huggingface.read_config(find("albert", "there"), content, "there")


def refused(library, layers, groups):
    try:
        config = read(library, layers, groups)
    except ValueError as error:
        message = str(error)
    else:
        assert (config.num_layers, config.num_blocks) == (layers, groups)
        return False
    assert re.search(rf"{library} assigns .* {groups} groups of {layers} layers", message)
    return True


@pytest.mark.parametrize("library", FORMULAS)
def test_every_pair_is_read_as_there_or_refused(library):
    of = FORMULAS[library]
    differing = {
        (layers, groups)
        for layers, groups in PAIRS
        if [of(i, layers, groups) for i in range(layers)]
        != [i * groups // layers for i in range(layers)]
    }
    assert {pair for pair in PAIRS if refused(library, *pair)} == differing
    assert len(differing) == {"Google": 11, "Hugging Face": 13}[library]
    assert ((44, 22) in differing) == (library == "Google")
    assert ((18, 14) in differing) == (library == "Hugging Face")


@pytest.mark.parametrize(("layers", "groups"), [(12, 1), (12, 12), (12, 3), (7, 3), (13, 8)])
def test_the_encoder_uses_the_groups_of_both(layers, groups):
    encoder = Encoder(read("Google", layers, groups))
    used = [encoder.blocks.index(block) for block in encoder.layer_blocks]
    for of in FORMULAS.values():
        assert used == [of(i, layers, groups) for i in range(layers)]


@pytest.mark.parametrize("library", FORMULAS)
def test_a_number_of_layers_that_would_take_for_ever(library):
    for groups in (1, 2, 10**12):
        with pytest.raises(ValueError, match=r"at most 1000 layers.*1,000,000,000,000 in there"):
            read(library, 10**12, groups)
