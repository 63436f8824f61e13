"""Every recipe of the family learns: held-out text after a short run, beside what needs no model.

Each recipe of `kbert.recipe` keeps its tokenizer, segments, masks, replacement, objective,
optimizer and schedule. What belongs to a cluster is smaller: two layers of 128, 4,000 pieces, rows
of 64 tokens, 32 of them in a batch, some thousand steps, and for so few steps a higher learning
rate and a warm-up of a tenth of the run.

`python -m benchmarks.recipes [bert albert …] [--text FILE] [--steps 2000]`
"""

import argparse
import csv
import functools
import math
from typing import Any

import numpy as np

import kbert
from benchmarks import _experiments as experiments
from kbert.training import WarmupDecay
from kbert.training.optimization.optimizers import make_optimizer
from pipelines.flags import parse_settings
from pipelines.masked_text import task_builder

NAMES = (
    *("bert", "bert-wwm", "roberta", "albert", "spanbert", "electra", "deberta-v3"),
    *("modernbert", "xlnet", "gpt-bert"),
)
# The published rates are those of batches up to a hundred times as large and runs as long. Without
# bias correction the first steps of so short a run are up to three times as long as the rate says.
LAMB_RATE, CORRECTED_RATE, UNCORRECTED_RATE = 1e-2, 2e-3, 1e-3


def make_config(chosen, tokenizer) -> kbert.EncoderConfig:
    """The recipe's model at the benchmark's size, with narrow embeddings where it has these."""
    published = kbert.family(chosen.model)
    changes = {**parse_settings(chosen.set or ()), **experiments.SIZES}
    # A window of 128 is an eighth of ModernBERT's rows at first, and 16 an eighth on either side.
    changes["attention_pattern"] = tuple(
        kind if kind == "global" else 16 for kind in published.attention_pattern
    )
    if published.embedding_width < published.hidden_size:
        changes["embedding_size"] = 64
    return experiments.config(tokenizer, chosen.model, **changes)


def make_task(chosen, tokenizer, seed: int) -> kbert.tasks.Task:
    """What the recipe trains, as `kbert-pretrain` makes it."""
    options = {**chosen.settings(), "seed": seed, "batch_size": experiments.BATCH}
    if chosen.memory_length is not None:
        options["memory_length"] = experiments.LENGTH
    build = task_builder(argparse.Namespace(**options))
    return build(kbert.Encoder(make_config(chosen, tokenizer)), tokenizer)


def learning_rate(chosen) -> float:
    """Its peak at this size."""
    if chosen.optimizer == "lamb":
        return LAMB_RATE
    return CORRECTED_RATE if chosen.bias_correction else UNCORRECTED_RATE


def optimizer_of(chosen, steps: int):
    """The recipe's, for a run of this length."""
    rate = WarmupDecay(
        learning_rate(chosen), steps, steps // 10, chosen.decay, join=chosen.decay_join
    )
    return make_optimizer(chosen.optimizer, rate, chosen)


def run(chosen, corpus: experiments.Corpus, steps: int, seed: int) -> dict[str, Any]:
    """Trains by the recipe; the answer holds the baselines too."""
    data = {
        "segments": chosen.segments,
        "short_sequence_share": chosen.short_sequence_share,
        "masking": chosen.masking,
        "masked_share": chosen.masked_share,
        "replacement": chosen.replacement,
        "causal_share": chosen.causal_share,
    }
    final = chosen.final_masked_share
    changing = {} if final is None else {"final_masked_share": final, "share_steps": steps}
    held_out = corpus.batches("held_out", **{**data, "masked_share": final or chosen.masked_share})
    result = experiments.learn(
        make_task(chosen, corpus.tokenizer, seed),
        corpus.batches(seed=seed, **data, **changing),
        held_out,
        steps,
        optimizer_of(chosen, steps),
        clip_norm=chosen.clip_norm or None,
    )
    rows = list(held_out.as_numpy_iterator())
    masked = [row["mask_ids"][is_masked(row)] for row in rows]
    result["frequent_token"] = experiments.most_frequent(masked)
    for label in ("next_sentence_labels", "sentence_order_labels"):
        if label in rows[0]:
            real = [row[label][row["padding_mask"][:, 0] > 0] for row in rows]
            result["frequent_label"] = experiments.most_frequent(real)
    return result


def is_masked(row: dict) -> np.ndarray:
    """Where a batch predicts a masked token, and not the next one of a causal row."""
    used = row["mask_weights"] > 0
    return used & ~row["causal_mask"].any(1, keepdims=True) if "causal_mask" in row else used


def second_objective(result: dict) -> tuple[str, str]:
    """What is learned beside the masks: measured, and without a model."""
    for name in ("nsp", "sop"):
        if f"{name}_accuracy" in result:
            measured = f"{name.upper()} accuracy {result[f'{name}_accuracy']:.3f}"
            return measured, f"{result['frequent_label']:.3f}"
    if "lm_accuracy" in result:
        return f"next token {result['lm_accuracy']:.3f}", f"{result['frequent_token']:.3f}"
    if "sbo_accuracy" in result:
        return f"SBO accuracy {result['sbo_accuracy']:.3f}", f"{result['frequent_token']:.3f}"
    if "rtd_loss" in result:
        share = result["replaced_share"]
        guessing = -share * math.log(share) - (1 - share) * math.log(1 - share)
        measured = (
            f"replaced tokens: loss {result['rtd_loss']:.3f}, precision "
            f"{result['rtd_precision']:.2f} at recall {result['rtd_recall']:.3f}"
        )
        return measured, f"loss {guessing:.3f}, precision {share:.2f}"
    return "", ""


def main() -> None:
    flags = experiments.parser("recipes", __doc__, steps=2000).parse_args()
    experiments.set_threads(flags.threads)
    folder, rows = experiments.results_folder(flags.output_dir, text=flags.text), []
    for name in flags.names or NAMES:
        chosen = kbert.recipe(name)
        corpus = experiments.prepare(flags.text, folder / chosen.tokenizer, chosen.tokenizer)
        for seed in flags.seeds:
            key = {"name": name, "seed": seed, "steps": flags.steps, "recipe": chosen.settings()}
            key["rate"] = learning_rate(chosen)
            compute = functools.partial(run, chosen, corpus, flags.steps, seed)
            result = experiments.once(folder / "results", key, compute)
            with open(folder / f"{name}-{seed}.csv", "w", newline="") as file:
                curve = csv.DictWriter(file, result["curve"][0])
                curve.writeheader()
                curve.writerows(result["curve"])
            half = result["curve"][experiments.EVALUATIONS // 2 - 1]
            accuracy = "plm_accuracy" if name == "xlnet" else "mlm_accuracy"
            rows.append(
                (
                    f"`{name}`",
                    f"{result['parameters'] / 1e6:.2f} M",
                    f"{result['step']:,}",
                    f"{result['curve'][0][accuracy]:.3f}, {half[accuracy]:.3f}, "
                    f"**{result[accuracy]:.3f}**",
                    f"{result['frequent_token']:.3f}",
                    *second_objective(result),
                )
            )
    found = "masked tokens found after an eighth, half and all of the steps"
    experiments.print_table(
        (
            "recipe",
            "parameters",
            "steps",
            found,
            "always the most frequent",
            "beside it",
            "no model",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
