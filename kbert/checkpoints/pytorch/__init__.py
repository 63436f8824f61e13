"""Reads PyTorch's files of weights (`pytorch_model.bin`, `model.pt`) without unpickling them."""
