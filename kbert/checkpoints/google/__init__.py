"""Google's TensorFlow 1 releases: BERT, ALBERT and ELECTRA, read."""
