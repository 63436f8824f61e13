import pytest

from kbert.training.run.phases import Phase, parse_phases, tokens_until


def test_bert_phases():
    """Nine tenths of the steps at 128, the rest at 512 (BERT, appendix A.2)."""
    short, long = parse_phases("128:0.9,512:0.1", 1_000_000, 256)
    assert (short.first_step, short.end, long.first_step, long.end) == (
        0,
        900_000,
        900_000,
        1_000_000,
    )
    assert (short.batch_size, long.batch_size) == (256, 256)


def test_shares_that_do_not_divide_the_steps_cover_all():
    phases = parse_phases("8:0.3333333,16:0.3333333,32:0.3333334", 10, 1)
    assert [p.steps for p in phases] == [3, 4, 3]
    assert tokens_until(phases, 10) == 8 * 3 + 16 * 4 + 32 * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("128", "length:share:batch_size or length:share:batch_size:masked_share. Received: '128'"),
        ("128:1:", "Received: '128:1:'"),
        ("128:1:8:0.3:1", "Received: '128:1:8:0.3:1'"),
        ("128:1:8:1.5", "masked share of a phase must be above 0 and at most 1.*'128:1:8:1.5'"),
        ("128:x", "Received: '128:x'"),
        ("128:0.5:1:2,64:0.5", "at most 1. Received: '128:0.5:1:2'"),
        ("128:0.5,512:0.4", "shares add up to 1. Received: '128:0.5,512:0.4'"),
        ("128:1.5,512:-0.5", "must be positive"),
        ("128:0.99,512:0.01", "at least one step.*steps=10"),
    ],
)
def test_wrong_text(text, message):
    with pytest.raises(ValueError, match=message):
        parse_phases(text, 10, 1)


def test_a_phase_may_have_a_masked_share():
    phases = parse_phases("8:0.5:4:0.3,8:0.25::0.15,16:0.25", 8, 2)
    assert [phase.masked_share for phase in phases] == [0.3, 0.15, None]
    assert [phase.batch_size for phase in phases] == [4, 2, 2]


def test_batches_counted_in_tokens():
    phase = Phase(sequence_length=256, batch_size=None, first_step=0, steps=10, batch_tokens=4096)
    assert (phase.tokens_per_step, tokens_until([phase], 3)) == (4096, 3 * 4096)
    assert phase.shape == "at most 4,096 tokens"
    (rows,) = parse_phases("128:1", 10, 8)
    assert rows.shape == "8 x 128 tokens"
    for size, tokens in ((None, None), (8, 4096)):
        with pytest.raises(ValueError, match=f"batch_size={size}, batch_tokens={tokens}"):
            Phase(sequence_length=8, batch_size=size, first_step=0, steps=1, batch_tokens=tokens)
