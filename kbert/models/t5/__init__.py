"""T5, its version 1.1 with FLAN, and mT5. `kbert.Seq2Seq` is their model."""
