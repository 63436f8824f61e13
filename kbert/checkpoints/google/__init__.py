"""Reads Google's releases of BERT, ALBERT and ELECTRA."""
