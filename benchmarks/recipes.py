"""Every recipe of the family learns: held-out text after a short run, beside what needs no model.

Each recipe of `kbert.recipe` keeps its tokenizer, segments, masks, replacement, objective,
optimizer and schedule. What belongs to a cluster is smaller: two layers of 128, 4,000 pieces, rows
of 64 tokens, 32 of them in a batch, some thousand steps, and for so few steps a higher learning
rate and a warm-up of a tenth of the run.

`python -m benchmarks.recipes [bert albert …] [--text FILE] [--steps 2000]`
"""

import csv
import functools
import math
from typing import Any

import kbert
from benchmarks import _experiments as experiments
from kbert.training import WarmupDecay
from kbert.training.optimization.optimizers import make_optimizer

NAMES = ("bert", "bert-wwm", "roberta", "albert", "spanbert", "electra")
# The published rates are those of batches up to a hundred times as large and runs as long. Without
# bias correction the first steps of so short a run are up to three times as long as the rate says.
LAMB_RATE, CORRECTED_RATE, UNCORRECTED_RATE = 1e-2, 2e-3, 1e-3


def make_config(chosen, tokenizer) -> kbert.EncoderConfig:
    """The recipe's model at the benchmark's size, with narrow embeddings where it has these."""
    published = kbert.family(chosen.model)
    narrow = published.embedding_width < published.hidden_size
    return experiments.config(tokenizer, chosen.model, embedding_size=64 if narrow else None)


def make_task(chosen, tokenizer, seed: int) -> kbert.tasks.Task:
    """What the recipe trains."""
    encoder = kbert.Encoder(make_config(chosen, tokenizer))
    if chosen.objective == "replaced_tokens":
        generator = kbert.tasks.generator_config(encoder.config, chosen.generator_share)
        return kbert.tasks.ReplacedTokenDetection(
            encoder, tokenizer, generator=generator, seed=seed
        )
    return kbert.tasks.Pretraining(
        encoder,
        tokenizer,
        next_sentence=chosen.sentence_objective == "next_sentence",
        sentence_order=chosen.sentence_objective == "sentence_order",
        span_boundary=chosen.objective == "span_boundary",
    )


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
    }
    held_out = corpus.batches("held_out", **data)
    result = experiments.learn(
        make_task(chosen, corpus.tokenizer, seed),
        corpus.batches(seed=seed, **data),
        held_out,
        steps,
        optimizer_of(chosen, steps),
        clip_norm=chosen.clip_norm or None,
    )
    rows = list(held_out.as_numpy_iterator())
    masked = [row["mask_ids"][row["mask_weights"] > 0] for row in rows]
    result["frequent_token"] = experiments.most_frequent(masked)
    for label in ("next_sentence_labels", "sentence_order_labels"):
        if label in rows[0]:
            real = [row[label][row["padding_mask"][:, 0] > 0] for row in rows]
            result["frequent_label"] = experiments.most_frequent(real)
    return result


def second_objective(result: dict) -> tuple[str, str]:
    """What is learned beside the masks: measured, and without a model."""
    for name in ("nsp", "sop"):
        if f"{name}_accuracy" in result:
            measured = f"{name.upper()} accuracy {result[f'{name}_accuracy']:.3f}"
            return measured, f"{result['frequent_label']:.3f}"
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
            rows.append(
                (
                    f"`{name}`",
                    f"{result['parameters'] / 1e6:.2f} M",
                    f"{result['step']:,}",
                    f"{result['curve'][0]['mlm_accuracy']:.3f}, {half['mlm_accuracy']:.3f}, "
                    f"**{result['mlm_accuracy']:.3f}**",
                    f"{result['frequent_token']:.3f}",
                    *second_objective(result),
                )
            )
    accuracy = "masked tokens found after an eighth, half and all of the steps"
    experiments.print_table(
        (
            "recipe",
            "parameters",
            "steps",
            accuracy,
            "always the most frequent",
            "beside it",
            "no model",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
