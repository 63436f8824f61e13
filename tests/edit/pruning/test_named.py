"""Gradual prunings as a flag says them."""

import inspect

import pytest

from kbert.edit.pruning import MagnitudePruning, MovementPruning, parse


def test_each_kind_is_made_of_its_settings():
    movement = parse("movement:sparsity=0.9,begin_step=0.1,end_step=100,globally=true")
    assert isinstance(movement, MovementPruning)
    assert movement.settings.to_dict() == {
        "sparsity": 0.9, "end_step": 100, "begin_step": 0.1, "initial_sparsity": 0.0,
        "frequency": 1, "globally": True,
    }  # fmt: skip
    magnitude = parse("magnitude:sparsity=0.5,kernels=*/qkv/kernel+*/output/kernel")
    assert isinstance(magnitude, MagnitudePruning)
    assert magnitude.settings.kernels == ("*/qkv/kernel", "*/output/kernel")


def test_arguments_are_shown():
    first, *rest = inspect.signature(MovementPruning).parameters.values()
    assert (first.name, first.kind) == ("sparsity", first.POSITIONAL_OR_KEYWORD)
    assert [x.name for x in rest][-1] == "globally"
    assert "the run's updates. Default: 0.7." in " ".join(MagnitudePruning.__doc__.split())
    assert "kernels: Patterns for the names" in MagnitudePruning.__doc__
    assert "globally" not in MagnitudePruning.__doc__


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size:sparsity=0.5", r"magnitude or movement with a .*Received: 'size:sparsity=0"),
        ("movement", r"such as movement:sparsity=0.85. Received: 'movement'"),
        ("movement:0.5", r"name=value, .*Received: '0.5' in 'movement:0.5'"),
        ("movement:sparsity=2", r"`sparsity` must be .*Received: 2"),
        ("movement:sparsity=0.5,kernels=a", r"MovementPruning has no .*Received: 'movement:spars"),
    ],
)
def test_what_is_none_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)
