"""Settings of the optimizer of a run: optimizer, schedule, clipping."""

from kbert.catalog.recipe import OPTIMIZER_SETTINGS
from kbert.core.options import Options, option

DECAYS = (
    *("linear", "cosine", "polynomial", "inverse_sqrt", "constant", "wsd"),
    "slanted_triangular",
)
JOINS = ("switch", "product", "after", "constant")
DECAY_SHARE = 0.1
WARMUP_STEPS = 10_000  # BERT's, of a million (README of google-research/bert)


class OptimizerSettings(Options):
    """Settings of an optimizer and its schedule; those of other optimizers are ignored.

    Args:
        {options}

    Example:
        >>> OptimizerSettings(learning_rate=1e-4).optimizer
        'adamw'
    """

    optimizer: str = option(
        "adamw",
        help="adamw is BERT's, lamb is ALBERT's, adagrad is ELMo's, stable_adamw is ModernBERT's, "
        "adafactor is T5's; muon updates the matrices of layers as wholes.",
        choices=sorted(OPTIMIZER_SETTINGS),
        compiled=True,
    )
    learning_rate: float = option(
        1e-4, help="Peak learning rate, after warm-up.", at_least=0, compiled=True
    )
    warmup_steps: int | None = option(
        None,
        help="Steps of the linear rise from 0. Default: 10,000 or the recipe's, but at most a "
        "tenth of the run.",
        at_least=0,
        compiled=True,
    )
    decay: str = option(
        "linear",
        help="Decay after warm-up; to 0 unless constant or the Transformer's inverse_sqrt. "
        "wsd: constant at the peak, then decay over the last --decay_share of the run; "
        "slanted_triangular, with --decay_join=after: ULMFiT's, from a 32nd of the peak and back.",
        choices=DECAYS,
        compiled=True,
    )
    decay_power: float = option(1.0, help="Exponent of --decay=polynomial.", compiled=True)
    decay_share: float = option(
        DECAY_SHARE,
        help="Share of the run, at its end, over which --decay=wsd decays.",
        above=0,
        at_most=1,
        compiled=True,
    )
    decay_join: str = option(
        "switch",
        help="How warm-up and decay are joined. switch: BERT's, the decay counts from step 0; "
        "product: ELECTRA's, their product; after: RoBERTa's, the decay starts at the peak; "
        "constant: T5's, the rate is the peak instead of rising to it.",
        choices=JOINS,
        compiled=True,
    )
    beta_1: float = option(
        0.9, help="Decay of the mean of gradients.", at_least=0, below=1, compiled=True
    )
    beta_2: float = option(
        0.999,
        help="Decay of the mean of squared gradients; 0.98 is RoBERTa's.",
        at_least=0,
        below=1,
        compiled=True,
    )
    epsilon: float = option(
        1e-6, help="Added to the root of the second moment.", at_least=0, compiled=True
    )
    bias_correction: bool = option(
        False, help="Bias correction of Adam's moments, as in RoBERTa.", compiled=True
    )
    weight_decay: float = option(
        0.01,
        help="Weight decay, not applied to biases and LayerNorm.",
        at_least=0,
        compiled=True,
    )
    initial_accumulator_value: float = option(
        1.0,
        help="Initial value of Adagrad's accumulators.",
        at_least=0,
        compiled=True,
    )
    scale_parameter: bool = option(
        True,
        help="Adafactor's rate is scaled by the root mean square of each weight, so that "
        "--learning_rate is a relative change, such as 0.01.",
        compiled=True,
    )
    clip_norm: float = option(
        1.0,
        help="Global norm that gradients are clipped to; 0: no clipping.",
        at_least=0,
        compiled=True,
    )
    ema: float | None = option(
        None,
        help="Decay of an exponential moving average of the weights, such as 0.999; the average "
        "becomes the final weights. Default: none.",
        above=0,
        below=1,
        compiled=True,
    )
    micro_batches: int = option(
        1,
        help="Gradient accumulation: parts into which a device splits its share of a batch; the "
        "same update in less memory.",
        at_least=1,
        compiled=True,
    )


def default_warmup(total_steps: int, most: int = WARMUP_STEPS) -> int:
    """Returns the default steps of warm-up: as published, but at most a tenth of the run.

    Args:
        total_steps: Steps of the run.
        most: Published number of steps.

    Returns:
        The number of steps.

    Example:
        >>> default_warmup(1_000_000), default_warmup(500)
        (10000, 50)
    """
    return min(most, total_steps // 10)
