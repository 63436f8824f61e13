"""Runs: training with logs, evaluation, best weights, checkpoints and exact resume."""
