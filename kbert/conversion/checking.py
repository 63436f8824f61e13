"""Checks on random inputs that the models of two folders compute the same.

Shapes: `B` batch, `T` tokens, `H` hidden width, `C` classes, `V` vocabulary.
"""

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from keras import ops

from kbert.checkpoints import Checkpoint, read_checkpoint
from kbert.checkpoints.huggingface.weights import OF_PYTORCH
from kbert.checkpoints.keras_hub import checkpoint as keras_hub
from kbert.configs.decoder import DecoderConfig
from kbert.configs.encoder import EncoderConfig
from kbert.conversion.heads import load_heads, run_heads
from kbert.core.types import Arrays, PathLike, Tensors
from kbert.io.json_file import read_json
from kbert.io.paths import Path, local_only
from kbert.models import Encoder
from kbert.models.generators.decoder import Decoder
from kbert.models.initial_values import without_drawing
from kbert.models.weights import set_arrays

# Relative to the largest output, or to 1 if all are smaller: how much float32 may differ between
# two libraries.
TOLERANCE = 1e-4
_TEXTS = 4
_TOKENS = 64
_FIRST_WORD = 5  # lower ids are [PAD] and other tokens that some models treat specially
# Outputs per text. All others are per token, and arbitrary at padding.
_OF_TEXTS = ("pooled", "sentence", "classifier", "choice")
# kbert's head -> the class of transformers that has it, and kbert's output -> names of the output
# there, of which the first that exists is read.
_THEIR_HEADS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "masked_lm": ("AutoModelForMaskedLM", {"masked_lm": ("logits",)}),
    "sentence": (
        "AutoModelForPreTraining",
        {"sentence": ("seq_relationship_logits", "sop_logits")},
    ),
    "discriminator": ("AutoModelForPreTraining", {"discriminator": ("logits",)}),
    "classifier": ("AutoModelForSequenceClassification", {"classifier": ("logits",)}),
    "tokens": ("AutoModelForTokenClassification", {"tokens": ("logits",)}),
    "span": (
        "AutoModelForQuestionAnswering",
        {"span_start": ("start_logits",), "span_end": ("end_logits",)},
    ),
    "choice": ("AutoModelForMultipleChoice", {"choice": ("logits",)}),
}


@dataclasses.dataclass(frozen=True)
class Check:
    """The largest difference in each output of two models; `str` formats it as a sentence.

    Attributes:
        reference: library that ran the source, e.g. "transformers 5.0 on the source".
        candidate: library that ran the target.
        differences: output -> largest absolute difference, relative to the larger of 1 and the
            reference's largest entry.
    """

    reference: str
    candidate: str
    differences: dict[str, float]

    @property
    def passed(self) -> bool:
        """Whether every difference is at most `TOLERANCE`; NaN fails."""
        return all(difference <= TOLERANCE for difference in self.differences.values())

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {value:.1e}" for name, value in self.differences.items())
        verdict = "equal" if self.passed else "NOT EQUAL"
        return (
            f"{self.reference}, {self.candidate}: {verdict}; largest difference relative to the "
            f"largest output: {listed} (tolerance {TOLERANCE:.0e})"
        )


def check(source: PathLike, target: PathLike) -> list[Check]:
    """Compares the outputs of a source model and its conversion on the same random inputs.

    Both models are loaded from their folders. `transformers` runs a Hugging Face folder if it and
    PyTorch are installed; KerasHub runs a KerasHub preset. In all other cases kbert runs the
    source. The check then proves that nothing was lost in writing, but not that kbert read the
    source correctly. A target in another library's format is run by kbert and by that library.

    Args:
        source: folder of the source, in a format that kbert reads.
        target: folder of the converted model.

    Returns:
        One check for each library that ran the target. Each compares "sequence", "pooled" if both
        have a pooler, a decoder's "logits", and the logits of every head that both have:
        "masked_lm" (at every position), "sentence", "discriminator", "classifier", "tokens",
        "span_start" and "span_end", "choice" (the texts are the alternatives), "span_boundary".
        Padding is left out.
    """
    source, target = (Path(local_only(path, "A comparison of models")) for path in (source, target))
    source_checkpoint, target_checkpoint = read_checkpoint(source), read_checkpoint(target)
    inputs = _random_inputs(source_checkpoint.config)
    heads = _head_names(source_checkpoint.arrays) & _head_names(target_checkpoint.arrays)
    reference_name, reference = _runners(source)[-1]
    expected = _without_padding(reference(source, inputs, heads), inputs)
    checks = []
    for name, run in _runners(target):
        actual = _without_padding(run(target, inputs, heads), inputs)
        shared_outputs = [output for output in expected if output in actual]
        checks.append(
            Check(
                f"{reference_name} on the source",
                f"{name} on the target",
                {
                    output: _difference(expected[output], actual[output])
                    for output in shared_outputs
                },
            )
        )
    return checks


def _head_names(arrays: Arrays) -> set[str]:
    return {name.split("/")[0] for name in arrays}


def _random_inputs(config: EncoderConfig | DecoderConfig) -> dict[str, np.ndarray]:
    """Returns random inputs (B, T), int32, whose texts have different lengths.

    Padding has the padding id: RoBERTa's positions skip it, and convolutions read it (MobileBERT,
    ConvBERT). It is at the beginning for models that pool the last token, because transformers
    pools the last position (XLNet). `segment_ids` are included only if the model has segments.
    """
    rng = np.random.default_rng(0)
    length = min(_TOKENS, config.max_positions)
    first = min(_FIRST_WORD, config.vocabulary_size - 1)
    lengths = np.linspace(length, max(1, length // 3), _TEXTS).astype("int32")[:, None]
    columns = np.arange(length)
    mask = columns < lengths
    if getattr(config, "pooling", None) == "last":
        mask = mask[:, ::-1]
    ids = rng.integers(first, config.vocabulary_size, (_TEXTS, length))
    padding_id = getattr(config, "padding_id", None) or 0
    inputs = {"token_ids": np.where(mask, ids, padding_id), "padding_mask": mask}
    num_segments = getattr(config, "num_segments", 0)
    if num_segments:
        inputs["segment_ids"] = (columns >= lengths // 2) % num_segments
    return {name: value.astype("int32") for name, value in inputs.items()}  # (B, T)


def _difference(expected: np.ndarray, found: np.ndarray) -> float:
    expected, found = np.asarray(expected, "float64"), np.asarray(found, "float64")
    return float(np.abs(expected - found).max() / max(1.0, np.abs(expected).max()))


_Runner = Callable[[Path, dict, set[str]], Tensors]  # folder, inputs, heads -> outputs


def _runners(folder: Path) -> list[tuple[str, _Runner]]:
    """Returns (library, function) for all that can run a folder's model, the most independent last.

    kbert is always the first.
    """
    runners: list[tuple[str, _Runner]] = [("kbert", _run_kbert)]
    if keras_hub.is_folder(folder):
        runners.append(("KerasHub", _run_keras_hub))
    installed = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    readable = any((folder / name).is_file() for name in OF_PYTORCH)  # since version 5
    if installed and readable and _names_its_architecture(folder / "config.json"):
        import transformers

        runners.append((f"transformers {transformers.__version__}", _run_transformers))
    return runners


def _names_its_architecture(path: Path) -> bool:
    return path.is_file() and "model_type" in read_json(path)


def _run_kbert(folder: Path, inputs: dict, heads: set[str]) -> Tensors:
    """Runs a folder's encoder with the named heads, or its decoder, in kbert: output -> tensor."""
    checkpoint = read_checkpoint(folder)
    if isinstance(checkpoint.config, DecoderConfig):
        return _run_decoder(folder, inputs, checkpoint)
    with without_drawing():
        encoder = Encoder(checkpoint.config)
        set_arrays(encoder, "encoder", checkpoint.part("encoder/"), checkpoint.source)
    head_arrays = {k: x for k, x in checkpoint.arrays.items() if k.split("/")[0] in heads}
    outputs = dict(encoder(inputs))
    return outputs | run_heads(load_heads(encoder, head_arrays, checkpoint.source), outputs)


def _run_decoder(folder: Path, inputs: dict, checkpoint: Checkpoint) -> Tensors:
    """Runs a folder's decoder in kbert.

    Args:
        folder: folder of the decoder.
        inputs: inputs of the model, (B, T) each.
        checkpoint: checkpoint of the same folder, for the classifier.

    Returns:
        "sequence" (B, T, H), "logits" (B, T, V) and, with a classifier, "classes" (B, T, C).
    """
    decoder = Decoder.from_preset(folder)
    sequence = decoder(inputs)["sequence"]
    outputs = {"sequence": sequence, "logits": decoder.logits(sequence)}  # (B, T, H), (B, T, V)
    # In use the head reads the last token only; the check applies it to every token.
    head = load_heads(decoder, checkpoint.part("classifier/"), checkpoint.source).get("classifier")
    return outputs if head is None else {**outputs, "classes": head(sequence)}  # (B, T, C)


def _run_keras_hub(folder: Path, inputs: dict, heads: set[str]) -> Tensors:
    """Runs a KerasHub preset, without heads: "sequence" and, if it has a pooler, "pooled"."""
    from keras_hub import models

    backbone = models.Backbone.from_preset(str(folder))
    outputs = backbone({name: inputs[name] for name in backbone.input})
    if not isinstance(outputs, dict):
        outputs = {"sequence_output": outputs}
    names = {name: f"{name}_output" for name in ("sequence", "pooled")}
    return {name: outputs[key] for name, key in names.items() if key in outputs}


def _run_transformers(folder: Path, inputs: dict, heads: set[str]) -> Tensors:
    """Runs a folder's model and the named heads in transformers on PyTorch: output -> array.

    "pooled" is left out if the file lacks weights.

    Args:
        folder: folder of the model.
        inputs: inputs of the model, (B, T) each.
        heads: names of the heads to run; a decoder has none here.
    """
    import torch
    import transformers

    def load(auto_class: Any) -> Any:
        return auto_class.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )

    with _quiet(transformers.utils.logging), torch.no_grad():
        if isinstance(read_checkpoint(folder).config, DecoderConfig):
            model, _ = load(transformers.AutoModelForCausalLM)
            ids = torch.tensor(inputs["token_ids"]).long()
            # Padding comes after the tokens, and attention is causal: no token attends to it.
            result = model.eval()(ids, output_hidden_states=True)
            return {"sequence": result.hidden_states[-1].numpy(), "logits": result.logits.numpy()}
        model, info = load(transformers.AutoModel)
        tensors = {"input_ids": inputs["token_ids"], "attention_mask": inputs["padding_mask"]}
        if "segment_ids" in inputs:
            tensors["token_type_ids"] = inputs["segment_ids"]
        tensors = {name: torch.tensor(value).long() for name, value in tensors.items()}
        result = model.eval()(**tensors)
        outputs = {"sequence": result.last_hidden_state.numpy()}
        # transformers randomly initialises weights that are missing in the file.
        if getattr(result, "pooler_output", None) is not None and not info["missing_keys"]:
            outputs["pooled"] = result.pooler_output.numpy()
        for head, (class_name, names) in _THEIR_HEADS.items():
            if head not in heads:
                continue
            model, _ = load(getattr(transformers, class_name))
            head_inputs = tensors
            if head == "choice":  # one question; the texts are its alternatives: (1, B, T)
                head_inputs = {name: value[None] for name, value in tensors.items()}
            result = model.eval()(**head_inputs)
            for name, theirs in names.items():
                logits = next(x for key in theirs if (x := getattr(result, key, None)) is not None)
                outputs[name] = (logits[0] if head == "choice" else logits).numpy()
    return outputs


def _without_padding(outputs: Tensors, inputs: Arrays) -> dict[str, np.ndarray]:
    """Returns the outputs as arrays, without those at padding, which are arbitrary.

    Outputs per token become (tokens, …); outputs per text stay unchanged.

    Args:
        outputs: output -> tensor, (B, T, …) or (B, …).
        inputs: inputs of the model, with "padding_mask".
    """
    mask = inputs["padding_mask"] == 1
    arrays = {name: ops.convert_to_numpy(value) for name, value in outputs.items()}
    return {name: x if name in _OF_TEXTS else x[mask] for name, x in arrays.items()}


@contextlib.contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Silences `transformers`' warnings about heads that are not loaded, and its progress bars."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
