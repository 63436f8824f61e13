"""The AWD-LSTM, a regularised language model of LSTMs (Merity et al. 2017), for ULMFiT."""
