"""fairseq's RoBERTa and XLM-R, as they were released: `model.pt`."""
