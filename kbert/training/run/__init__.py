"""A run: what is logged, evaluated, kept and resumed."""
