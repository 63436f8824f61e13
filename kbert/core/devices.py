"""Names of the precisions and distribution strategies of a run."""

PRECISIONS = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2}  # bytes of an activation
STRATEGIES = ("one_device", "mirrored", "multi_worker", "tpu", "model_parallel", "fully_sharded")
