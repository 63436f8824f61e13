"""Pretraining on one GPU: tokens a second of whole steps, and their share of the chip's peak.

kbert on JAX beside BERT in PyTorch, compiled, with its fused attention and AdamW. Both mask a
seventh of the tokens, compute logits of these alone, clip by the global norm and decay; layers in
bfloat16, weights in float32, dropout 0.1 on hidden states and on probabilities. Rows are as BERT's
pairs fill them (half of the longest, on average), padded or packed; only tokens that are not
padding count. Random numbers stand for text: no time goes into data. Two contenders take turns.

The share of the peak counts the products of real tokens, three times those of forward, and no
recomputation: of padded rows it says what padding costs.

`python -m benchmarks.accelerator [--models bert-base-uncased bert-large-uncased] [--rows 64]
[--length 512] [--peak 989e12] [--rounds 20] [--kbert_only]`. TensorFlow is not needed; it makes
the input of real runs, and nothing of a step on JAX. Without a GPU the numbers say nothing;
`--models bert-tiny --rows 2 --length 64` shows that it runs.
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too

import jax
import keras
import numpy as np

import kbert
from kbert.heads import MaskedLMHead
from kbert.tasks.losses import cross_entropy
from kbert.training import AdamW, TrainStep

RATE, MASKED = 1e-4, 7  # one token in seven
# Products in bfloat16 a second without sparsity, by the vendors' data sheets.
PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L4": 121e12}


def batch(rows: int, length: int, vocabulary: int, packed: bool) -> dict[str, np.ndarray]:
    """Rows of one example each, or filled with as many as there is place for."""
    rng = np.random.default_rng(0)
    examples = np.zeros((rows, length), "int32")
    positions = np.zeros((rows, length), "int32")
    for row in range(rows):
        used = 0
        for number in itertools.count(1):
            size = int(rng.integers(length // 16, length + 1))
            if number > 1 and not (packed and used < length):
                break
            size = min(size, length - used)  # what a sampler would choose to fill the rest
            examples[row, used : used + size] = number
            positions[row, used : used + size] = np.arange(size)
            used += size
    mask = (examples > 0).astype("int32")
    lengths = mask.sum(axis=1)
    places = length // MASKED
    found = {
        "token_ids": rng.integers(1, vocabulary, (rows, length)).astype("int32") * mask,
        "segment_ids": rng.integers(0, 2, (rows, length)).astype("int32") * mask,
        "padding_mask": mask,
        "mask_positions": (rng.random((rows, places)) * lengths[:, None]).astype("int32"),
        "mask_ids": rng.integers(1, vocabulary, (rows, places)).astype("int32"),
        "mask_weights": np.ones((rows, places), "float32"),
    }
    return {**found, "example_ids": examples, "position_ids": positions} if packed else found


class MaskedLM(TrainStep, keras.Model):
    """An encoder and its masked-LM head, without what needs a tokenizer."""

    def __init__(self, config: kbert.EncoderConfig) -> None:
        super().__init__(dtype="mixed_bfloat16")
        self.encoder = kbert.Encoder(config, dtype=self.dtype_policy)
        table = self.encoder.token_embedding
        self.head = MaskedLMHead(config, table, dtype=self.dtype_policy)
        self.built = True

    def loss_terms(self, batch, training):
        names = ("token_ids", "segment_ids", "padding_mask", "example_ids", "position_ids")
        inputs = {name: batch[name] for name in names if name in batch}
        positions = batch["mask_positions"]
        out = self.encoder(inputs, training=training, output_positions=positions)
        logits = self.head(out["sequence"])
        return {"mlm_loss": cross_entropy(logits, batch["mask_ids"], batch["mask_weights"])}, {}


def kbert_step(config: kbert.EncoderConfig, data: dict[str, np.ndarray]) -> Callable[[], float]:
    model = MaskedLM(config)
    model.compile(AdamW(RATE))
    model.prepare(data)
    variables = ("trainable", "non_trainable", "optimizer", "metrics")
    # As Keras' `fit` holds it between steps.
    state = model._get_jax_state(
        **{f"{name}_variables": True for name in variables}, purge_model_variables=True
    )
    step = jax.jit(model.train_step, donate_argnums=0)
    data = jax.device_put(data)

    def run() -> float:
        nonlocal state
        values, state = step(state, data)
        return float(values["loss"])

    return run


def torch_step(config: kbert.EncoderConfig, data: dict[str, np.ndarray]) -> Callable[[], float]:
    import torch
    from torch import nn
    from torch.nn import functional

    width, heads = config.hidden_size, config.num_heads

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up = nn.Linear(width, config.intermediate_size)
            self.down = nn.Linear(config.intermediate_size, width)
            self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-12) for _ in range(2))

        def forward(self, x: Any, mask: Any) -> Any:
            rows, length, _ = x.shape
            parts = self.qkv(x).view(rows, length, 3, heads, width // heads)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            found = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=config.attention_dropout
            )
            found = self.out(found.transpose(1, 2).reshape(rows, length, width))
            x = self.norms[0](x + functional.dropout(found, config.dropout))
            inner = self.down(functional.gelu(self.up(x)))
            return self.norms[1](x + functional.dropout(inner, config.dropout))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(config.vocabulary_size, width)
            self.segment = nn.Embedding(2, width)
            self.position = nn.Embedding(config.max_positions, width)
            self.layers = nn.ModuleList(Layer() for _ in range(config.num_layers))
            self.norm, self.head_norm = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
            self.transform = nn.Linear(width, width)
            self.bias = nn.Parameter(torch.zeros(config.vocabulary_size))

        def forward(self, data: dict[str, Any]) -> Any:
            x = self.token(data["token_ids"]) + self.segment(data["segment_ids"])
            x = self.norm(x + self.position(data["position_ids"]))
            x = functional.dropout(x, config.dropout)
            for layer in self.layers:
                x = layer(x, data["mask"])
            places = data["mask_positions"][:, :, None].expand(-1, -1, width)
            x = self.head_norm(functional.gelu(self.transform(x.gather(1, places))))
            logits = functional.linear(x, self.token.weight, self.bias)
            return functional.cross_entropy(
                logits.flatten(0, 1).float(), data["mask_ids"].flatten()
            )

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device)
    for weight in model.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=0.02)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, fused=True)
    names = ("token_ids", "segment_ids", "mask_positions", "mask_ids")
    there = {name: torch.tensor(data[name]).long().to(device) for name in names}
    rows, length = data["token_ids"].shape
    positions = data.get("position_ids", np.tile(np.arange(length), (rows, 1)))
    there["position_ids"] = torch.tensor(positions).long().to(device)
    if "example_ids" in data:
        examples = torch.tensor(data["example_ids"]).to(device)
        there["mask"] = (examples[:, :, None] == examples[:, None])[:, None]
    else:
        there["mask"] = torch.tensor(data["padding_mask"]).bool().to(device)[:, None, None]
    compiled = torch.compile(model)

    def run() -> float:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            loss = compiled(there)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return run


def products(config: kbert.EncoderConfig, data: dict[str, np.ndarray]) -> float:
    """Operations in the matrix products of a step, of what is not padding."""
    width, inner = config.hidden_size, config.intermediate_size
    tokens = int(data["padding_mask"].sum())
    examples = data.get("example_ids", data["padding_mask"])
    pairs = sum(int((np.bincount(row)[1:] ** 2).sum()) for row in examples)  # that attend
    layer = tokens * (4 * width**2 + 2 * width * inner) + pairs * 2 * width
    head = data["mask_ids"].size * width * (width + config.vocabulary_size)
    return 3 * 2.0 * (config.num_layers * layer + head)


def peak_of(device: jax.Device) -> float | None:
    names = [name for name in PEAKS if name in device.device_kind]
    return PEAKS[names[0]] if names else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=__doc__)
    parser.add_argument("--models", nargs="+", default=["bert-base-uncased", "bert-large-uncased"])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peak", type=float, help="the chip's products a second, where unknown")
    parser.add_argument("--kbert_only", action="store_true")
    chosen = parser.parse_args()
    device = jax.devices()[0]
    peak = chosen.peak or peak_of(device)
    print(f"{device.device_kind}, {chosen.rows} x {chosen.length}, bfloat16")
    print(f"{'':44}{'ms':>8}{'real tokens/s':>16}{'of the peak':>14}{'ratio':>8}")
    for name, packed in itertools.product(chosen.models, (False, True)):
        config = kbert.family(name)
        data = batch(chosen.rows, chosen.length, config.vocabulary_size, packed)
        steps = {"kbert": kbert_step(config, data)}
        if not chosen.kbert_only:
            steps["PyTorch, compiled"] = torch_step(config, data)
        times: dict[str, list[float]] = {contender: [] for contender in steps}
        for turn in range(chosen.rounds + 3):
            for contender, step in steps.items():
                start = time.perf_counter()
                loss = step()
                if not np.isfinite(loss):
                    raise RuntimeError(f"The loss is {loss} in {contender}, {name}")
                if turn > 2:  # compiled, and warm
                    times[contender].append(time.perf_counter() - start)
        medians = {contender: statistics.median(seconds) for contender, seconds in times.items()}
        tokens, work = int(data["padding_mask"].sum()), products(config, data)
        for contender, seconds in medians.items():
            title = f"{name}, {'packed' if packed else 'padded'}: {contender}"
            share = f"{work / seconds / peak:.3f}" if peak else "-"
            ratio = seconds / medians["kbert"]
            print(f"{title:44}{seconds * 1e3:8.1f}{tokens / seconds:16.0f}{share:>14}{ratio:8.2f}")


if __name__ == "__main__":
    main()
