"""Models whose code lies with their weights on the hub, in torch and as their formulas say.

The names of the weights are those of the published files. (model.py of chandar-lab/NeoBERT;
bert_layers.py of mosaicml/mosaic-bert-base.)
"""

import math

import torch
from torch import nn

SIGMA = 0.15


def make(cls, seed: int = 0, **content) -> nn.Module:
    """A model with weights of sigma 0.15; scales of normalisation around 1."""
    torch.manual_seed(seed)
    model = cls(content).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = "norm" in name.lower() and name.endswith("weight")
            weight.normal_(1.0 if scale else 0.0, SIGMA)
    return model


def attended(query, key, value, mask, bias=0.0):
    """Outputs (B, T, H) and probabilities of heads (B, N, T, D)."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias
    scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e4)
    probabilities = scores.softmax(-1)
    outputs = (probabilities @ value).transpose(1, 2)
    return outputs.reshape(*outputs.shape[:2], -1), probabilities


def turned(x, base=10_000.0):
    """Neighbouring pairs as complex numbers, times e^(i place angle); heads (B, T, N, D)."""
    size = x.shape[-1]
    angles = base ** -(torch.arange(0, size, 2).double() / size)
    turns = torch.polar(
        torch.ones(1, dtype=torch.float64), torch.outer(torch.arange(x.shape[1]).double(), angles)
    )
    pairs = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(-2).to(x.dtype)


class _NeoBlock(nn.Module):
    def __init__(self, width, heads, inner, epsilon):
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        self.ffn = nn.ModuleDict(
            {
                "w12": nn.Linear(width, 2 * inner, bias=False),
                "w3": nn.Linear(inner, width, bias=False),
            }
        )
        self.attention_norm = nn.RMSNorm(width, epsilon)
        self.ffn_norm = nn.RMSNorm(width, epsilon)

    def forward(self, x, mask):
        batch, length, _ = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, length, self.num_heads, -1)
        query, key, value = heads.chunk(3, dim=-1)
        query, key, value = (h.transpose(1, 2) for h in (turned(query), turned(key), value))
        outputs, probabilities = attended(query, key, value, mask)
        x = x + self.wo(outputs)
        first, second = self.ffn["w12"](self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.ffn["w3"](nn.functional.silu(first) * second), probabilities


class _NeoModel(nn.Module):
    def __init__(self, content):
        super().__init__()
        width, epsilon = content["hidden_size"], content["norm_eps"]
        inner = 8 * math.ceil(int(2 * content["intermediate_size"] / 3) / 8)
        self.encoder = nn.Embedding(content["vocab_size"], width)
        self.transformer_encoder = nn.ModuleList(
            _NeoBlock(width, content["num_attention_heads"], inner, epsilon)
            for _ in range(content["num_hidden_layers"])
        )
        self.layer_norm = nn.RMSNorm(width, epsilon)

    def forward(self, ids, segments, mask):
        x = self.encoder(ids)
        states, attentions = [x], []
        for block in self.transformer_encoder:
            x, probabilities = block(x, mask)
            states.append(x)
            attentions.append(probabilities)
        states[-1] = self.layer_norm(x)
        return states, attentions


class NeoBert(nn.Module):
    """With both heads, so that one model tests all."""

    def __init__(self, content):
        super().__init__()
        width = content["hidden_size"]
        self.model = _NeoModel(content)
        self.decoder = nn.Linear(width, content["vocab_size"])
        self.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 3)

    def forward(self, ids, segments, mask):
        states, attentions = self.model(ids, segments, mask)
        pooled = torch.tanh(self.dense(states[-1][:, 0]))
        heads = {"masked_lm": self.decoder(states[-1]), "classifier": self.classifier(pooled)}
        return states, attentions, pooled, heads


def slopes(num_heads):
    """Of 2^n heads a geometric series; else every other of twice as many fills up."""
    power = 2 ** math.floor(math.log2(num_heads))
    found = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(2 * power)][::2]
    return found + between[: num_heads - power]


class _MosaicLayer(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.num_heads = heads
        own = nn.ModuleDict({"Wqkv": nn.Linear(width, 3 * width)})
        output = nn.ModuleDict(
            {"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, 1e-12)}
        )
        self.attention = nn.ModuleDict({"self": own, "output": output})
        self.mlp = nn.ModuleDict(
            {
                "gated_layers": nn.Linear(width, 2 * inner, bias=False),
                "wo": nn.Linear(inner, width),
                "layernorm": nn.LayerNorm(width, 1e-12),
            }
        )

    def forward(self, x, mask):
        batch, length, _ = x.shape
        heads = self.attention["self"]["Wqkv"](x).view(batch, length, 3, self.num_heads, -1)
        query, key, value = (h.transpose(1, 2) for h in heads.unbind(2))
        places = torch.arange(length)
        falls = -torch.tensor(slopes(self.num_heads))[:, None, None] * (
            (places[:, None] - places).abs()
        )
        outputs, probabilities = attended(query, key, value, mask, falls)
        output = self.attention["output"]
        x = output["LayerNorm"](x + output["dense"](outputs))
        first, second = self.mlp["gated_layers"](x).chunk(2, dim=-1)
        inside = nn.functional.gelu(first) * second
        return self.mlp["layernorm"](x + self.mlp["wo"](inside)), probabilities


class MosaicBert(nn.Module):
    """With both heads, so that one model tests all."""

    def __init__(self, content):
        super().__init__()
        width, vocabulary = content["hidden_size"], content["vocab_size"]
        embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(vocabulary, width),
                "token_type_embeddings": nn.Embedding(2, width),
                "LayerNorm": nn.LayerNorm(width, 1e-12),
            }
        )
        layers = nn.ModuleList(
            _MosaicLayer(width, content["num_attention_heads"], content["intermediate_size"])
            for _ in range(content["num_hidden_layers"])
        )
        self.bert = nn.ModuleDict(
            {
                "embeddings": embeddings,
                "encoder": nn.ModuleDict({"layer": layers}),
                "pooler": nn.ModuleDict({"dense": nn.Linear(width, width)}),
            }
        )
        transform = {"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, 1e-12)}
        predictions = {
            "transform": nn.ModuleDict(transform),
            "decoder": nn.Linear(width, vocabulary),
        }
        self.cls = nn.ModuleDict({"predictions": nn.ModuleDict(predictions)})
        self.cls["predictions"]["decoder"].weight = embeddings["word_embeddings"].weight
        self.classifier = nn.Linear(width, 3)

    def forward(self, ids, segments, mask):
        tables = self.bert["embeddings"]
        x = tables["word_embeddings"](ids) + tables["token_type_embeddings"](segments)
        x = tables["LayerNorm"](x)
        states, attentions = [x], []
        for layer in self.bert["encoder"]["layer"]:
            x, probabilities = layer(x, mask)
            states.append(x)
            attentions.append(probabilities)
        predictions = self.cls["predictions"]
        made = nn.functional.gelu(predictions["transform"]["dense"](x))
        logits = predictions["decoder"](predictions["transform"]["LayerNorm"](made))
        pooled = torch.tanh(self.bert["pooler"]["dense"](x[:, 0]))
        return (
            states,
            attentions,
            pooled,
            {
                "masked_lm": logits,
                "classifier": self.classifier(pooled),
            },
        )
