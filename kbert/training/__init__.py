"""Training that is right on one device or many: the step, optimizers, schedules, checkpoints."""
