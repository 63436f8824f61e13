import pytest

import kbert
from kbert.catalog.families import family_row
from kbert.catalog.recipe import OBJECTIVES
from kbert.catalog.recipes import RECIPES, recipe, table
from kbert.core.late import TABLE
from kbert.data.denoising.noise import make_noise
from kbert.training.optimization.schedules import WarmupDecay
from kbert.training.optimization.settings import DECAYS, JOINS
from kbert.training.run.phases import parse_phases


@pytest.mark.parametrize("name", RECIPES)
def test_every_value_is_one_that_kbert_knows(name):
    found = recipe(name)
    assert found.name == name
    assert found.source
    assert found.tokenizer == family_row(found.model).tokenizer
    assert found.objective in OBJECTIVES
    assert found.optimizer in TABLE["optimizer"]
    assert found.decay in DECAYS
    assert found.decay_join in JOINS
    if found.phases is not None:
        phases = parse_phases(found.phases, found.steps, found.batch_size)
        longest = max(phase.sequence_length for phase in phases)
        # ELMo's LSTMs have no positions.
        assert longest <= getattr(kbert.family(found.model), "max_positions", longest)
    counted_in_tokens = found.objective == "translation"
    assert (found.batch_size is None) == (found.phases is None) == counted_in_tokens
    assert (found.batch_tokens is None) == (found.label_smoothing is None) != counted_in_tokens
    without = ("language_model", "causal_lm", "memory_lm", "denoising", "translation")
    masks = found.objective not in without
    assert (found.noise is not None) == (found.objective == "denoising")
    if found.noise is not None:
        assert make_noise(found.noise).to_text() == found.noise
    assert (found.segments is not None) == (found.masking is not None) == masks
    assert (found.masked_share is not None) == (found.replacement is not None) == masks
    assert (found.negatives is not None) == (found.objective == "language_model")
    assert (found.initial_accumulator_value is None) == (found.optimizer != "adagrad")
    if found.sentence_objective:
        assert kbert.family(found.model).pooler_activation is not None
    assert (found.generator_share is not None) == (found.objective == "replaced_tokens")
    assert (found.objective == "span_boundary") <= (found.masking == "span")


def test_published_values():
    bert, roberta, albert = recipe("bert"), recipe("roberta"), recipe("albert")
    assert (bert.learning_rate, bert.warmup_steps, bert.steps) == (1e-4, 10_000, 1_000_000)
    assert (bert.optimizer, bert.bias_correction, bert.epsilon) == ("adamw", False, 1e-6)
    assert recipe("bert-wwm").masking == "whole_word"
    assert (roberta.beta_2, roberta.clip_norm, roberta.bias_correction) == (0.98, 0.0, True)
    assert (roberta.segments, roberta.sentence_objective) == ("full_sentences", None)
    assert (albert.optimizer, albert.batch_size, albert.warmup_steps) == ("lamb", 4096, 3_125)
    assert (albert.masking, albert.sentence_objective) == ("ngram", "sentence_order")
    span, electra = recipe("spanbert"), recipe("electra")
    assert (span.epsilon, span.steps, span.phases) == (1e-8, 2_400_000, "512:1")
    assert (electra.masking, electra.replacement) == ("independent", (0.85, 0.0))
    assert (electra.decay_join, electra.generator_share) == ("product", 0.25)
    base, large = recipe("electra-base"), recipe("electra-large")
    assert (base.generator_share, large.masked_share) == (1 / 3, 0.25)
    elmo = recipe("elmo")
    assert (elmo.optimizer, elmo.learning_rate, elmo.decay) == ("adagrad", 0.2, "constant")
    assert (elmo.initial_accumulator_value, elmo.clip_norm) == (1.0, 10.0)
    assert (elmo.batch_size, elmo.phases, elmo.negatives) == (3 * 128, "20:1", 8192)
    assert elmo.steps == 10 * (768_648_884 // (3 * 128 * 20))
    ulmfit = recipe("ulmfit")
    assert (ulmfit.learning_rate, ulmfit.beta_1, ulmfit.beta_2) == (4e-3, 0.7, 0.99)
    assert (ulmfit.batch_size, ulmfit.phases, ulmfit.memory_length) == (64, "70:1", 70)
    assert ulmfit.steps == 10 * (103_227_021 // (64 * 70)) == 10 * ulmfit.warmup_steps
    gpt, base, big = recipe("gpt"), recipe("transformer"), recipe("transformer-big")
    assert (gpt.learning_rate, gpt.warmup_steps, gpt.decay) == (2.5e-4, 2_000, "cosine")
    assert (gpt.batch_size, gpt.phases, gpt.weight_decay, gpt.clip_norm) == (64, "512:1", 0.01, 1.0)
    assert gpt.steps == 100 * 984_846_357 // (64 * 512)
    assert (base.batch_tokens, base.warmup_steps, base.steps) == (25_000, 4_000, 100_000)
    assert (base.beta_2, base.epsilon, base.weight_decay, base.clip_norm) == (0.98, 1e-9, 0.0, 0.0)
    assert (base.decay, base.label_smoothing) == ("inverse_sqrt", 0.1)
    assert (base.average_checkpoints, big.average_checkpoints) == (5, 20)
    assert (big.steps, big.batch_tokens) == (300_000, 25_000)
    for found in (base, big):  # section 5.3
        width = kbert.family(found.model).hidden_size
        assert found.learning_rate == pytest.approx(width**-0.5 * 4_000**-0.5)


def test_published_values_of_encoder_decoders():
    bart, mass, t5, pegasus = map(recipe, ("bart", "mass", "t5", "pegasus"))
    assert (bart.steps, bart.batch_size, bart.noise) == (500_000, 8000, "bart")
    noise = make_noise(bart.noise)
    assert (noise.masked_share, noise.mean_span, noise.permuted_share) == (0.3, 3.0, 1.0)
    assert (mass.learning_rate, mass.warmup_steps, mass.steps) == (5e-4, 10_000, 125_000)
    assert (mass.batch_size, mass.phases, mass.beta_2) == (4096, "512:1", 0.98)
    assert make_noise(mass.noise).masked_share == 0.5
    assert (t5.steps, t5.batch_size, t5.phases) == (524_288, 128, "512:1")
    noise = make_noise(t5.noise)
    assert (noise.masked_share, noise.mean_span) == (0.15, 3.0)
    assert (pegasus.steps, pegasus.batch_size) == (500_000, 8192)
    noise = make_noise(pegasus.noise)
    assert (noise.gap_share, noise.kept_share, noise.target_length(512)) == (0.45, 0.2, 256)
    for found in (t5, pegasus):
        assert (found.optimizer, found.scale_parameter, found.weight_decay) == (
            "adafactor",
            True,
            0.0,
        )
        schedule = WarmupDecay(
            *(found.learning_rate, found.steps, found.warmup_steps, found.decay),
            join=found.decay_join,
        )
        rates = [float(schedule(step)) for step in (0, 9_999, 40_000)]
        assert rates == pytest.approx([0.01, 0.01, 0.005])
    counts = {"mass-base-uncased": 123, "mass-middle-uncased": 208, "pegasus-base": 223}
    for name, millions in counts.items():
        assert kbert.family(name).count_parameters() // 1_000_000 == millions


def test_an_unknown_name_lists_the_close_ones():
    with pytest.raises(ValueError, match=r"Close: roberta.*Received: 'robert'"):
        recipe("robert")
    with pytest.raises(ValueError, match=r"Known: bert, bert-wwm, .*Received: 'xyz'"):
        recipe("xyz")


def test_it_prints_all_it_holds():
    lines = recipe("electra-base").describe().splitlines()
    assert "generator_share       0.3333" in lines
    assert "steps                 766,000" in lines
    assert "beta_1                0.9" in lines
    assert not any(line.startswith("sentence_objective") for line in lines)
    assert "sentence_objective    next_sentence" in recipe("bert").describe().splitlines()
    settings = {line.split()[0] for line in recipe("elmo").describe().splitlines()}
    assert "initial_accumulator_value" in settings
    assert "beta_1" not in settings
    assert "initial_accumulator_value" in settings
    assert "segments" not in settings
    lines = table().splitlines()
    assert [line.split()[0] for line in lines] == ["recipe", *RECIPES]
    (big,) = (line for line in lines if line.startswith("transformer-big"))
    assert "25,000 tokens" in big
    assert "None" not in big
