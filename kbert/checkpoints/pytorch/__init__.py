"""PyTorch's files of weights (`pytorch_model.bin`, `model.pt`), read without unpickling."""
