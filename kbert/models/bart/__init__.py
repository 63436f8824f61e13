"""BART and the models of its code: mBART, Marian, PEGASUS. `kbert.Seq2Seq` is their model."""
