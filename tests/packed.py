"""Packed rows taken apart again, by plain loops: what every test of packing compares with."""

import numpy as np

POSITIONS = ("mask_positions", "span_starts", "span_ends")


def taken_apart(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The batch with one example a row, each at the beginning of its row, in the order packed."""
    rows = [example for row in range(len(batch["token_ids"])) for example in _of_row(batch, row)]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _of_row(batch, row):
    ids = batch["example_ids"][row]
    for number in range(1, ids.max(initial=0) + 1):
        places = np.flatnonzero(ids == number)
        begin, length = places[0], len(places)
        assert np.array_equal(places, begin + np.arange(length)), "an example is one run of tokens"
        assert np.array_equal(batch["position_ids"][row][places], np.arange(length))
        last = begin + length - 1
        cls = last if "order_ids" in batch else begin
        assert batch["cls_positions"][row][number - 1] == cls
        assert batch["padding_mask"][row][places].all()
        example = {"padding_mask": np.zeros_like(ids)}
        example["padding_mask"][:length] = 1
        for name in {
            "token_ids",
            "segment_ids",
            "causal_mask",
            "attention_order",
            "order_ids",
        } & batch.keys():
            example[name] = np.zeros_like(ids)
            example[name][:length] = batch[name][row][places]
        masked = batch["mask_positions"][row]
        mine = (batch["mask_weights"][row] > 0) & (masked >= begin) & (masked < begin + length)
        for name in (name for name in batch if name.startswith(("mask_", "span_"))):
            values = batch[name][row][mine]
            example[name] = np.zeros_like(batch[name][row])
            example[name][: len(values)] = values - begin if name in POSITIONS else values
        for name in (name for name in batch if name.endswith("_labels")):
            example[name] = batch[name][row][number - 1]
            assert batch[name.replace("_labels", "_weights")][row][number - 1] == 1
        yield example
